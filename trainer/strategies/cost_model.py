"""``strategy: auto``: predicted seconds of a pass under each strategy, and when to change.

A pass over a snapshot takes, on the slowest of P ranks,

    c · (½ + ½ · work / work of c) + α · collectives + β · bytes

seconds. Work is counted from the sizes of the graph. c, seconds of computing, is measured in a pass where the strategy trains;
half of it is taken to be the same for any size. α, seconds per collective, and β, seconds per byte, are measured on the link.
Choosing by such a model is the idea of APT (PPoPP 2025) for static graphs. No clock and no randomness is here: all ranks that
see the same numbers decide alike.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

AUTO = "auto"
"""The name in configurations."""
CANDIDATES = ("whole", "snapshot", "vertex", "sequential", "pac")
"""Those that it chooses among, if they can train the model; of equal costs the first. Others learn something else."""
FAMILIES = {
    "whole": "whole",
    "snapshot": "whole",
    "vertex": "vertex",
    "sequential": "sequential",
    "pac": "pac",
}
"""Strategies that run the same lines are measured together."""
FIXED = 0.5
"""Share of a measured pass that does not grow with the graph: calls of operations, which are many in a small pass."""

LEAST_BETWEEN = 20
"""Snapshots between two changes, at least."""
IN_A_ROW = 3
"""Snapshots in a row that must speak for a change: one may be an outlier."""
GAIN = 0.9
"""A change must promise a pass of at most this share of the present one; errors of predictions are about as large."""

FLOAT_BYTES = 4
ROW = 4.0
"""Work of a row of a graph stage or of a question's ends, in edges: a product with a matrix instead of a sum."""
SAVED = 8
"""Tensors that autograd saves per row and stage, about."""
BLOCK_BYTES = 1 << 30
"""``device_budget_mib`` of ``snapshot`` by default: beyond it blocks are passed twice forwards."""
RERUN = 4 / 3
"""Seconds with a second forward pass over those with one, if a backward pass takes two forward ones."""
PIECES, PIECE_CELLS = 4, 4096
"""Of rows that cross, as in ``shared_layout``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Model, ranks and link: what stays in a run.

    Attributes:
        ranks: P.
        alpha_s: Of a collective, seconds.
        beta_s: Of a byte that a rank sends, seconds.
        free_bytes: Memory of a rank.
        width: Of embeddings.
        weights: Numbers of the model.
        stages: Of the model.
        fanouts: Neighbours that each graph stage samples, from the target outwards; None: all.
        turns: Changes of direction between stages along the graph and along time: 2 L − 1 for L pairs.
        window: Snapshots that an embedding looks back.
        batch: Events of a rank in a step of ``vertex``.
    """

    ranks: int
    alpha_s: float
    beta_s: float
    free_bytes: float
    width: int
    weights: int
    stages: int
    fanouts: tuple[int | None, ...]
    turns: int
    window: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The size of a pass over a snapshot, the same on all ranks.

    Attributes:
        snapshots: Of the horizon.
        nodes: That have come.
        active: Nodes with an edge in a snapshot of the horizon, the mean.
        edges: Directed pairs of such a snapshot, the mean.
        events: Of the learned snapshot.
        foreign_parts: λ, foreign parts with a neighbour of a node with an edge, the mean.
        largest_share: Of the edges, on the rank that has most of them under ``vertex``.
    """

    snapshots: int
    nodes: int
    active: float
    edges: float
    events: int
    foreign_parts: float
    largest_share: float


@dataclass(frozen=True, slots=True)
class Volume:
    """What a pass costs the slowest rank, without its prices: work in edges, collectives, bytes, and memory."""

    work: float
    collectives: float
    sent_bytes: float
    held_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted seconds of a pass, in computing and on the link.

    Attributes:
        compute_s: Of the slowest rank.
        link_s: Of its collectives.
        fits: Whether memory suffices.
    """

    compute_s: float
    link_s: float
    fits: bool = True

    @property
    def seconds(self) -> float:
        """Of the pass; infinite if it does not fit."""
        return self.compute_s + self.link_s if self.fits else math.inf

    def __str__(self) -> str:
        if not self.fits:
            return "does not fit into memory"
        return f"{self.seconds:.3g} s, {self.compute_s:.3g} computing and {self.link_s:.3g} on the link"


def volume(strategy: str, setup: Setup, load: Load) -> Volume:
    """The volume of a pass under one of ``CANDIDATES``."""
    if strategy in ("sequential", "pac"):  # no choice is between them: waits are in measured passes
        return Volume(load.events, 0, 0)
    return _of_parts(setup, load) if strategy == "vertex" else _of_snapshots(strategy, setup, load)


def _of_snapshots(strategy: str, setup: Setup, load: Load) -> Volume:
    """``whole`` and ``snapshot``: all rows of the horizon, whose snapshots and nodes ranks share, in one step."""
    ranks, cells = setup.ranks, load.snapshots * load.active
    along_graph = (ROW * load.active + load.edges) * -(-load.snapshots // ranks)
    along_time = ROW * cells / ranks
    questions = ROW * 3 * load.events / ranks
    saved = FLOAT_BYTES * SAVED * setup.stages * setup.width * cells / ranks
    if strategy == "whole":
        return Volume(along_graph + along_time + questions, 0, 0, saved)
    again = RERUN if saved > BLOCK_BYTES else 1.0
    pieces = max(1, min(PIECES, -(-load.snapshots // ranks), cells // PIECE_CELLS))
    # A rank has whole snapshots on one side of a turn, and its share of the nodes on the other.
    of_snapshots, of_nodes = -(-load.snapshots // ranks) * load.active, cells / ranks
    rows = setup.turns * (of_snapshots + of_nodes) * (ranks - 1) / ranks
    ends = load.events * (ranks - 1) / ranks**2
    sent = setup.width * FLOAT_BYTES * (rows + 4 * ends) + _gradient_bytes(setup)
    return Volume(
        again * (along_graph + along_time) + questions, 2 * pieces * setup.turns + 4, sent, min(saved, BLOCK_BYTES)
    )  # fmt: skip


def _of_parts(setup: Setup, load: Load) -> Volume:
    """``vertex``: sampled rows around batches of the rank's events; foreign rows are read from the store, not sent."""
    events = max(1.0, load.events * load.largest_share)
    steps = math.ceil(events / setup.batch)
    rows, of_step = min(3 * min(events, setup.batch), load.active), 0.0
    ends, foreign = rows, 0.0
    for fanout in setup.fanouts:
        degree = min(load.edges / max(load.active, 1.0), math.inf if fanout is None else fanout)
        of_step += setup.window * rows * (ROW + degree)
        rows = min(load.active, rows * (1 + degree))
    of_step += setup.window * ROW * ends + ROW * 3 * min(events, setup.batch)
    if setup.ranks > 1:
        foreign = load.foreign_parts * load.active * load.largest_share
    return Volume(
        steps * of_step + setup.window * ROW * foreign, steps + 2, steps * _gradient_bytes(setup)
    )  # fmt: skip


def _gradient_bytes(setup: Setup) -> float:
    return 2 * (setup.ranks - 1) / setup.ranks * FLOAT_BYTES * setup.weights


class Passes:
    """Measured passes, from which others are predicted: the median of the last ones, so that one slow pass changes nothing."""

    LAST = 9

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, float]]] = {}

    def add(self, strategy: str, compute_s: float, work: float) -> None:
        """Take in a pass of a strategy that did so much work in so many seconds."""
        self._seen.setdefault(FAMILIES[strategy], deque(maxlen=self.LAST)).append((compute_s, work))

    def knows(self, strategy: str) -> bool:
        """Whether a pass of the strategy's family was measured."""
        return FAMILIES[strategy] in self._seen

    def seconds(self, strategy: str, work: float) -> float:
        """Predicted seconds of a pass that does so much work."""
        seen = self._seen[FAMILIES[strategy]]
        return median(seconds * (FIXED + (1 - FIXED) * work / before) for seconds, before in seen)

    def state(self) -> dict[str, list[list[float]]]:
        """The state that ``restore`` continues from."""
        return {family: [list(one) for one in seen] for family, seen in self._seen.items()}

    def restore(self, state: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Continue from a ``state()``."""
        self._seen = {
            family: deque(((one[0], one[1]) for one in seen), maxlen=self.LAST)
            for family, seen in state.items()
        }


def cost(strategy: str, setup: Setup, load: Load, passes: Passes) -> Cost:
    """The cost of a pass of a strategy of whose family passes were measured."""
    of_pass = volume(strategy, setup, load)
    link_s = 0.0
    if setup.ranks > 1:
        link_s = setup.alpha_s * of_pass.collectives + setup.beta_s * of_pass.sent_bytes
    return Cost(passes.seconds(strategy, of_pass.work), link_s, of_pass.held_bytes <= setup.free_bytes)


def reason_for(chosen: str, predicted: Mapping[str, Cost], load: Load) -> str:
    """Why a strategy is used, in a sentence."""
    others = {name: of_pass for name, of_pass in predicted.items() if name != chosen}
    sizes = f"λ is {load.foreign_parts:.2g}, and {load.active / max(load.nodes, 1):.0%} of the nodes have an edge in a snapshot"
    if not others:
        return f"{chosen} alone can train the model on these ranks. A pass is predicted to take {predicted[chosen]}"
    least = min(others, key=lambda name: others[name].seconds)
    compared = "; ".join(f"{name}: {of_pass}" for name, of_pass in predicted.items())
    if predicted[chosen].seconds <= others[least].seconds:
        return f"{chosen} is predicted to need least for a pass: {compared}. {sizes}"
    return f"{chosen} stays, because {least} is predicted to need more than {GAIN:.0%} of its pass: {compared}. {sizes}"


class Chooser:
    """Chooses among strategies, snapshot by snapshot: at most one change in ``LEAST_BETWEEN``, and none for a small gain.

    Args:
        names: The candidates; the first is in use until costs are known.

    Attributes:
        current: The strategy in use.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.current = self._wanted = names[0]
        self._in_a_row = 0
        self._since = -1  # snapshots since the last choice; −1: there was none

    @property
    def is_first(self) -> bool:
        """Whether nothing was chosen yet."""
        return self._since < 0

    def see(self, costs: Mapping[str, Cost]) -> bool:
        """Take in the costs of the next snapshot, by strategy; whether ``current`` changed for it.

        The first choice needs one snapshot only, every later one ``IN_A_ROW``.
        """
        first = self.is_first
        self._since += 1
        best = min(costs, key=lambda name: costs[name].seconds)
        wanted = best if costs[best].seconds <= GAIN * costs[self.current].seconds else self.current
        self._in_a_row = self._in_a_row + 1 if wanted == self._wanted else 1
        self._wanted = wanted
        may_change = first or (self._in_a_row >= IN_A_ROW and self._since >= LEAST_BETWEEN)
        if wanted == self.current or not may_change:
            return False
        self.current, self._since = wanted, 0
        return True

    def state(self) -> dict[str, int | str]:
        """The state that ``restore`` continues from."""
        return {
            "strategy": self.current, "wanted": self._wanted, "in_a_row": self._in_a_row, "since": self._since,
        }  # fmt: skip

    def restore(self, state: Mapping[str, int | str]) -> None:
        """Continue from a ``state()``."""
        self.current, self._wanted = str(state["strategy"]), str(state["wanted"])
        self._in_a_row, self._since = int(state["in_a_row"]), int(state["since"])
