"""A classifier of events that learns from judged ones as they come: piecewise-linear inputs, a perceptron, replay."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from freshet_graph.stream.arrays.kinds import Float32, Float64, Int64

BINS = 16
"""Pieces of a column."""
OPEN_END = 5.0
"""How many lengths of the last piece its end continues."""
_FEWEST = 32


class PiecewiseLinear(nn.Module):
    """Columns of numbers as pieces: the share of each piece between two quantiles that lies below the number.

    See Gorishniy, Rubachev and Babenko, "On embeddings for numerical features in tabular deep learning" (2022), section 3.2.
    Zeros are often "nothing yet", so they have an indicator, and quantiles are those of the other numbers.

    Args:
        columns: Number of columns.

    Attributes:
        width: Of its output.
    """

    low: Tensor
    length: Tensor
    most: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(columns, BINS))
        self.register_buffer("length", torch.full((columns, BINS), torch.inf))
        self.register_buffer("most", torch.ones(columns, BINS))
        self.width = columns * (BINS + 1)

    def fit(self, rows: Float32) -> None:
        """Place the pieces by quantiles of rows (n, columns)."""
        self.length.fill_(torch.inf)
        self.most.fill_(1)
        for column, numbers in enumerate(rows.T):
            others = numbers[numbers != 0]
            some = others if len(others) >= _FEWEST else numbers
            edges = np.unique(np.quantile(some, np.linspace(0, 1, BINS + 1)).astype(np.float32))
            if len(edges) == 1:
                edges = np.append(edges, edges + 1)
            pieces = len(edges) - 1
            self.low[column, :pieces] = torch.from_numpy(edges[:-1])
            self.length[column, :pieces] = torch.from_numpy(np.diff(edges))
            self.most[column, pieces - 1] = OPEN_END

    @override
    def forward(self, rows: Tensor) -> Tensor:
        """(n, width) of rows (n, columns)."""
        pieces = ((rows[:, :, None] - self.low) / self.length).clamp(min=0)
        return torch.cat([torch.minimum(pieces, self.most).flatten(1), (rows != 0).to(rows.dtype)], dim=1)


class RowSample:
    """A uniform sample of all rows that came, bounded (Vitter's algorithm R).

    Args:
        most: Rows.
        columns: Of a row.
    """

    def __init__(self, most: int, columns: int) -> None:
        self._most = most
        self.rows: Float32 = np.empty((0, columns), np.float32)
        self.came = 0

    def add(self, rows: Float32, generator: np.random.Generator) -> None:
        """Take in rows (n, columns), in order."""
        room = max(0, min(self._most - len(self.rows), len(rows)))
        self.rows = np.concatenate([self.rows, rows[:room]])
        rest = rows[room:]
        numbers = np.arange(self.came + room + 1, self.came + len(rows) + 1)
        self.came += len(rows)
        places = (generator.random(len(rest)) * numbers).astype(np.int64)
        taken = places < self._most
        self.rows[places[taken]] = rest[taken]


class JudgedSample:
    """A uniform sample of the judged rows of each class, so that the rare one stays when the other is thinned out.

    Args:
        most: Rows of each class.
        columns: Of a row.
    """

    def __init__(self, most: int, columns: int) -> None:
        self._classes = [RowSample(most, columns + 2) for _ in range(2)]  # with weight and label last

    def __len__(self) -> int:
        return sum(len(one.rows) for one in self._classes)

    @property
    def came(self) -> int:
        """Rows that came."""
        return sum(one.came for one in self._classes)

    def add(self, judged: Float32, generator: np.random.Generator) -> None:
        """Take in rows (n, columns + 2), weight and label last, in order."""
        for label, one in enumerate(self._classes):
            one.add(judged[judged[:, -1] == label], generator)

    def all_rows(self) -> Float32:
        """Every row (len, columns + 2); a weight also counts the rows for which a row stands, 1 on average over all."""
        return self._weighed(*(np.arange(len(one.rows)) for one in self._classes))

    def draw(self, count: int, generator: np.random.Generator) -> Float32:
        """Some of ``all_rows``, drawn with repetition, in any order."""
        places = generator.integers(0, len(self), count)
        zeros = len(self._classes[0].rows)
        drawn = self._weighed(places[places < zeros], places[places >= zeros] - zeros)
        return generator.permutation(drawn)

    def _weighed(self, *places: Int64) -> Float32:
        parts = []
        for one, chosen in zip(self._classes, places, strict=True):
            rows = one.rows[chosen]
            if len(rows):
                rows[:, -2] *= one.came / len(one.rows) * len(self) / self.came
            parts.append(rows)
        return np.concatenate(parts)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {str(label): {"rows": one.rows, "came": one.came} for label, one in enumerate(self._classes)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        for label, one in enumerate(self._classes):
            one.rows, one.came = (
                np.asarray(state[str(label)]["rows"]).copy(),
                int(state[str(label)]["came"]),
            )

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return sum(one.rows.nbytes for one in self._classes)


class JudgedClassifier:
    """Learns the classes of judged events once, in order, with as many earlier ones beside them.

    It says what the average of its weights over the last steps says, since a pass in order leaves the last ones noisy.

    Where the pieces of its inputs lie, it takes from the sample of earlier rows: when ``first`` rows are judged, and again at
    each doubling up to ``last``. There it begins again, with some passes over the sample.

    Args:
        columns: Numbers of a row that become pieces.
        vectors: Numbers behind them that are taken as they are, embeddings.
        seed: Of weights and draws.
        first: Rows that are judged before it says anything.
        last: Rows after which pieces stay where they are.
        sample: Earlier rows of each class that are kept.
        width: Of its two hidden layers.
        learning_rate: Of Adam.
        batch: Rows per step.
    """

    def __init__(
        self,
        columns: int,
        vectors: int,
        seed: int,
        *,
        first: int,
        last: int,
        sample: int,
        width: int,
        learning_rate: float,
        batch: int,
    ) -> None:
        self._columns, self._vectors, self._seed = columns, vectors, seed
        self._first, self._last, self._width = first, last, width
        self._rate, self._batch = learning_rate, batch
        self._sample = JudgedSample(sample, columns + vectors)
        self._fitted = 0  # rows that were judged when pieces were placed
        self._network: nn.Module | None = None
        self._turns = 0

    def scores(self, rows: Float32) -> Float64:
        """Log-odds of class 1, float64 (n,), of rows (n, columns + vectors); NaN before it learned anything."""
        if self._network is None:
            return np.full(len(rows), np.nan)
        self._average.eval()
        with torch.no_grad():
            parts = [
                self._average(torch.from_numpy(part)).squeeze(1).numpy()
                for part in np.split(rows, range(_AT_ONCE, len(rows), _AT_ONCE))
            ]
        return np.concatenate(parts).astype(np.float64)

    def learn(self, rows: Float32, label: Int64, weight: Float64 | None = None) -> None:
        """Learn judged rows (n, columns + vectors) and their classes int64 (n,), 0 or 1, in order.

        ``weight`` float64 (n,) says by how much each loss counts, now and when it is learned again; None: by 1.
        """
        self._turns += 1
        generator = np.random.default_rng([self._seed, self._turns])
        weights = np.ones(len(rows)) if weight is None else weight
        judged = np.column_stack([rows, weights, label]).astype(np.float32)
        self._sample.add(judged, generator)
        came = self._sample.came
        with torch.random.fork_rng([]), torch.enable_grad():
            torch.manual_seed(int(generator.integers(1 << 63)))
            due = self._first if self._network is None else min(2 * self._fitted, self._last)
            if came >= due > self._fitted:
                self._begin()
                self._fitted = came
                for _ in range(_PASSES):
                    self._steps(self._sample.draw(len(self._sample), generator))
            elif self._network is not None and len(judged):
                again = self._sample.draw(len(judged), generator)
                self._steps(generator.permutation(np.concatenate([judged, again])))

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        began = {} if self._network is None else self._learning()
        return {
            **{name: one.state_dict() for name, one in began.items()},
            "sample": self._sample.state(),
            "fitted": self._fitted,
            "turns": self._turns,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        if "network" in state:
            with torch.random.fork_rng([]):
                self._make()
            for name, one in self._learning().items():
                one.load_state_dict(state[name])
        self._sample.restore(state["sample"])
        self._fitted, self._turns = int(state["fitted"]), int(state["turns"])

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._sample.memory_bytes

    def _begin(self) -> None:
        self._make()
        assert isinstance(self._network, _Network)
        self._network.pieces.fit(self._sample.all_rows()[:, : self._columns])

    def _learning(self) -> dict[str, Any]:
        """What has a state of torch's."""
        return {"network": self._network, "average": self._average, "optimiser": self._optimiser}

    def _make(self) -> None:
        self._network = _Network(self._columns, self._vectors, self._width)
        self._average = AveragedModel(self._network, avg_fn=_averaged)
        self._optimiser = torch.optim.Adam(self._network.parameters(), lr=self._rate)

    def _steps(self, judged: Float32) -> None:
        assert self._network is not None
        self._network.train()
        rows = torch.from_numpy(judged)
        for batch in torch.split(rows, self._batch):
            self._optimiser.zero_grad(set_to_none=True)
            logits = self._network(batch[:, :-2]).squeeze(1)
            binary_cross_entropy_with_logits(logits, batch[:, -1], batch[:, -2]).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
            self._optimiser.step()
            self._average.update_parameters(self._network)


def _averaged(average: Tensor, weights: Tensor, steps: Tensor | int) -> Tensor:
    """The average after a further step: over the last ``_AVERAGED``, over a tenth of all at first."""
    return torch.lerp(average, weights, max(1 / _AVERAGED, 10 / (10 + int(steps))))


_AT_ONCE = 4096
_PASSES = 3
"""Over the sample, where the classifier begins again."""
_AVERAGED = 500
"""Steps."""


class _Network(nn.Module):
    """Pieces of numbers and normalised vectors into a perceptron of two hidden layers."""

    def __init__(self, columns: int, vectors: int, width: int) -> None:
        super().__init__()
        self.pieces = PiecewiseLinear(columns)
        self._columns = columns
        self.norm = nn.LayerNorm(vectors) if vectors else None
        self.perceptron = nn.Sequential(
            nn.Linear(self.pieces.width + vectors, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )  # fmt: skip

    @override
    def forward(self, rows: Tensor) -> Tensor:
        parts = [self.pieces(rows[:, : self._columns])]
        if self.norm is not None:
            parts.append(self.norm(rows[:, self._columns :]))
        logits: Tensor = self.perceptron(torch.cat(parts, dim=1))
        return logits
