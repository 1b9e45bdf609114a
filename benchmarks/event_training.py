"""TGN training against PyG's building blocks, on the CPU: python benchmarks/event_training.py.

Both train TGN with the same widths (memory, time and embedding 100, two heads, ten latest neighbours, dropout 0.1, last
message, Adam) on the same events and negatives, in turns, in one process: ``torch_geometric``'s ``TGNMemory``,
``LastNeighborLoader`` and ``TransformerConv`` in the order of its example, and the preset ``tgn`` under the strategy
``sequential``. Medians of events/s over rounds, by the process's CPU seconds. ``--ap`` trains both for an epoch and
predicts what follows.

``--warm`` events are learned before the clock runs; ``--wall`` has seconds on the wall instead. Needs ``pip install
torch_geometric``, and jodie_wikipedia.parquet among the real graphs or as --data.
"""

import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.examples import Examples, Queries
from freshet_graph.trainer.data.history import Encounter, Inserts
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import batched_figures
from freshet_graph.trainer.strategies.events.remembering import EventOptions
from freshet_graph.trainer.strategies.events.sequential import SequentialStrategy
from freshet_graph.trainer.strategies.interface import Setting
from freshet_graph.trainer.tasks.link_prediction import LinkPrediction

WIDTH, EDGES, RATE = 100, 4, 1e-3
HOST = torch.device("cpu")
Interactions = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Source, destination, seconds, and the destination of one negative each."""


def interactions(file: Path) -> Interactions:
    table = pq.read_table(file, columns=["src", "dst", "t"])
    src, dst, t = (table[name].to_numpy().astype(np.int64) for name in ("src", "dst", "t"))
    pool = np.unique(dst)
    return src, dst, t, pool[np.random.default_rng(0).integers(0, len(pool), len(src))]


def has_peer() -> bool:
    """Whether PyG is installed."""
    return importlib.util.find_spec("torch_geometric") is not None


class Peer:
    """PyG's building blocks, in the order of its example."""

    def __init__(self, data: Interactions, seed: int, device: torch.device = HOST) -> None:
        from torch_geometric.nn import TransformerConv
        from torch_geometric.nn.models.tgn import (
            IdentityMessage,
            LastAggregator,
            LastNeighborLoader,
            TGNMemory,
        )

        class Attention(nn.Module):
            def __init__(self, time_encoder: nn.Module) -> None:
                super().__init__()
                self.time_encoder = time_encoder
                edge = EDGES + WIDTH
                self.attend = TransformerConv(WIDTH, WIDTH // 2, heads=2, dropout=0.1, edge_dim=edge)

            def forward(self, x, last_update, edge_index, t, message):  # type: ignore[no-untyped-def]
                since = (last_update[edge_index[0]] - t).to(x.dtype)
                edge = torch.cat([self.time_encoder(since), message], dim=-1)
                return self.attend(x, edge_index, edge)

        torch.manual_seed(seed)
        self.src, self.dst, self.t, self.negative = (torch.from_numpy(column).to(device) for column in data)
        self.message = torch.zeros(len(self.src), EDGES, device=device)
        nodes = int(max(self.src.max(), self.dst.max())) + 1
        self.memory = TGNMemory(
            nodes, EDGES, WIDTH, WIDTH, IdentityMessage(EDGES, WIDTH, WIDTH), LastAggregator()
        )
        self.attention = Attention(self.memory.time_enc)
        self.decoder = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.parts = nn.ModuleList([self.memory, self.attention, self.decoder]).to(device)
        self.memory.reset_state()  # its messages are made on the memory's device
        self.neighbours = LastNeighborLoader(nodes, size=10, device=device)
        self.optimiser = torch.optim.Adam(set(self.parts.parameters()), lr=RATE)
        self.place = torch.empty(nodes, dtype=torch.long, device=device)

    def logits(self, here: slice) -> tuple[torch.Tensor, torch.Tensor]:
        src, dst, negative = self.src[here], self.dst[here], self.negative[here]
        nodes, edge_index, edges = self.neighbours(torch.cat([src, dst, negative]).unique())
        self.place[nodes] = torch.arange(len(nodes), device=nodes.device)
        z, last_update = self.memory(nodes)
        z = self.attention(z, last_update, edge_index, self.t[edges], self.message[edges])
        ends = [z[self.place[ids]] for ids in (src, dst, negative)]
        return tuple(self.decoder(torch.cat([ends[0], other], dim=1)).squeeze(1) for other in ends[1:])  # type: ignore[return-value]

    def remember(self, here: slice) -> None:
        self.memory.update_state(self.src[here], self.dst[here], self.t[here], self.message[here])
        self.neighbours.insert(self.src[here], self.dst[here])

    def train(self, begin: int, end: int, batch: int) -> None:
        self.parts.train()
        for first in range(begin, end, batch):
            here = slice(first, min(first + batch, end))
            self.optimiser.zero_grad()
            positive, negative = self.logits(here)
            loss = nn.functional.binary_cross_entropy_with_logits(positive, torch.ones_like(positive))
            loss = loss + nn.functional.binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))
            self.remember(here)
            loss.backward()
            self.optimiser.step()
            self.memory.detach()

    @torch.no_grad()
    def predict(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        self.parts.eval()
        found = []
        for first in range(begin, end, 200):
            here = slice(first, min(first + 200, end))
            found.append(self.logits(here))
            self.remember(here)
        positive, negative = (torch.cat(part).cpu().numpy() for part in zip(*found, strict=True))
        return positive, negative


class Ours:
    """A preset under ``sequential``."""

    def __init__(
        self, data: Interactions, options: dict[str, str], precision: str, seed: int, *,
        name: str = "tgn", device: torch.device = HOST,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        self.data = data
        self.precision = precision
        widths = {"tgn": {"memory": WIDTH, "time_width": WIDTH}, "tgn-history": {"memory": WIDTH}}
        params = {**widths.get(name, {}), **options}
        self.name, self.device = name, device
        self.model = create_model(name, ModelShape(0, 1), params).to(device)
        self.num_nodes = int(max(data[0].max(), data[1].max())) + 1
        self.tau = 0

    def start(self, batch: int, *, compiled: bool = False) -> None:
        optimisation = Optimisation(batch_size=batch, learning_rate=RATE, grad_clip=None)
        lane: Any = SimpleNamespace(edge_features=0)
        # Queries are made here; only the loss is the task's.
        task: Any = SimpleNamespace(loss=partial(LinkPrediction.loss, None))
        setting = Setting(
            self.model, task, lane, Ranks(device=self.device), optimisation, 0, compile=compiled
        )
        self.strategy = SequentialStrategy(setting, EventOptions(precision=self.precision))

    def snapshot(self, begin: int, end: int) -> tuple[Queries, Queries]:
        """The next events arrive, whatever is done with them."""
        src, dst, t, negative = (column[begin:end] for column in self.data)
        t, n = t * 1_000_000, end - begin
        self.strategy.remember(
            self.tau,
            EventColumns(
                op=np.ones(n, np.int8), src=src, dst=dst, t=t, visible_t=t, late=np.zeros(n, np.bool_),
                weight=np.zeros(n, np.float32), label=np.zeros(n, np.int32), has_label=np.zeros(n, np.bool_),
            ),
            self.num_nodes,
        )  # fmt: skip
        self.tau += 1
        encounters = np.zeros((n, len(Encounter)), np.float32)
        before = t[np.arange(n) // 200 * 200]
        positive, random = (
            Queries(np.arange(n), src, other, encounters, t, before) for other in (dst, negative)
        )
        return positive, random

    def train(self, begin: int, end: int, batch: int) -> None:
        positive, negative = self.snapshot(begin, end)
        nothing = positive.part(slice(0, 0))
        inserts = Inserts(positive.src, positive.dst, positive.time_us, np.zeros(len(positive), np.bool_))
        every = np.arange(len(positive))
        rows = positive, positive, negative, nothing, every, nothing, nothing
        examples = Examples(0, 0, inserts, inserts.late, every, *rows, 1, {})
        self.strategy.learn([examples], 0)

    def predict(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        positive, negative = self.strategy.answer(self.model, list(self.snapshot(begin, end)))
        return positive, negative


PEERS = {"moment": "batch", "merge": "linear"}
OURS: dict[str, tuple[dict[str, str], str]] = {
    "tgn": ({}, "float32"),
    "tgn, once": ({"moment": "batch"}, "float32"),
    "tgn as the peer": (PEERS, "float32"),
    "tgn as the peer, bf16": (PEERS, "bfloat16"),
}
"""As in the paper; a node embedded once a batch; that with one linear layer after attention, as PyG's example has it;
and with bfloat16 products."""


def rates(data: Interactions, batch: int, given: Any) -> Iterator[list[str]]:
    """Rows: median events/s over rounds, and the median of the ratios of each round."""
    clock = time.perf_counter if given.wall else time.process_time
    sides: dict[str, Callable[[int, int, int], None]] = {"torch_geometric": Peer(data, 0).train}
    for name, (options, products) in OURS.items():
        ours = Ours(data, options, products, 0)
        ours.start(batch)
        sides[name] = ours.train
    for train in sides.values():
        train(0, given.warm, batch)
    events, first = max(3 * batch, 1200), itertools.count(given.warm, max(3 * batch, 1200))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for begin in itertools.islice(first, given.rounds):
        for name, train in sides.items():
            seconds = harness.seconds_of(lambda t=train, b=begin: t(b, b + events, batch), clock)
            found[name].append(events / seconds)
    for name, rate in found.items():
        ratios = [ours / peer for peer, ours in zip(found["torch_geometric"], rate, strict=True)]
        yield [str(batch), name, f"{statistics.median(rate):.0f}", f"{statistics.median(ratios):.2f}"]


def precisions(data: Interactions, batch: int, epochs: int, seeds: int) -> Iterator[list[str]]:
    """Rows: AP of the 15 % after the 70 % that are learned, over seeds."""
    learned, ended = int(0.7 * len(data[0])), int(0.85 * len(data[0]))

    def ap(side: Any, forget: Callable[[], object]) -> float:
        for _ in range(epochs):
            forget()
            side.train(0, learned, batch)
        return float(batched_figures(*side.predict(learned, ended))["ap"])

    reached: dict[str, list[float]] = {}
    for seed in range(seeds):
        peer = Peer(data, seed)
        forget = lambda p=peer: (p.memory.reset_state(), p.neighbours.reset_state())  # noqa: E731
        reached.setdefault("torch_geometric", []).append(ap(peer, forget))
        for name, (options, products) in OURS.items():
            ours = Ours(data, options, products, seed)
            ours.start(batch)
            reached.setdefault(name, []).append(ap(ours, ours.strategy.rewind))
    for name, aps in reached.items():
        yield [str(batch), name, f"{statistics.mean(aps):.4f} ({min(aps):.4f} to {max(aps):.4f})"]


def main() -> None:
    given = harness.options(
        __doc__, data=harness.DATA / "jodie_wikipedia.parquet", rounds=9, warm=12_000, threads=1, wall=False, ap=0, seeds=3,
        batch=[200, 600, 2000],
    )  # fmt: skip
    harness.require(
        has_peer(), "this benchmark compares with torch_geometric. Say: pip install torch_geometric"
    )
    torch.set_num_threads(given.threads)
    data = interactions(harness.existing(given.data))
    if given.ap:
        rows = (row for batch in given.batch for row in precisions(data, batch, given.ap, given.seeds))
        harness.table(f"batch | way | validation AP after {given.ap} epochs", rows)
    else:
        rows = (row for batch in given.batch for row in rates(data, batch, given))
        harness.table("batch | way | events/s | ratio", rows)


if __name__ == "__main__":
    main()
