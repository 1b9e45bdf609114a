"""A lane as plain dicts: slow, obvious, and written from docs/semantics.md and docs/store-format.md.

Placements are taken from a partitioner that runs on its own; all else is computed from the events.
"""

import copy
from dataclasses import dataclass, field

import numpy as np

from freshet_graph.schemas.section import Section
from freshet_graph.stream.partition.interface import Assignment, PartitionerSetting, Why, create, register
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.state_table import pack, unpack

F = 5
INTERVAL_US = 1_000


@dataclass
class Row:
    """One event; dense ids are given by first appearance, ``node`` events have no dst."""

    op: int
    src: int
    dst: int | None
    t: int
    weight: float = 1.0
    features: list[float] | None = None
    offset: int | None = None
    label: int | None = None


@dataclass
class OracleSnapshot:
    """What must be readable at τ."""

    tau: int
    num_nodes: int
    pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    pair_parts: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    vectors: dict[int, np.ndarray] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    placed: dict[int, set[int]] = field(default_factory=dict)

    def stored(self, parts: set[int]) -> dict[tuple[int, int], float]:
        return {pair: w for pair, w in self.pairs.items() if self.pair_parts[pair] & parts}

    def undirected(self, parts: set[int]) -> dict[tuple[int, int], np.float32]:
        joined: dict[tuple[int, int], np.float32] = {}
        for (u, v), weight in sorted(self.stored(parts).items()):
            if u != v:
                key = (min(u, v), max(u, v))
                joined[key] = np.float32(joined.get(key, np.float32(0)) + np.float32(weight))
        return joined

    def nodes(self, parts: set[int], *, owned: bool) -> list[int]:
        ends = {end for pair in self.stored(parts) for end in pair}
        return sorted(v for v in ends if not owned or self.home[v] in parts)

    def vector(self, node: int, parts: set[int]) -> np.ndarray:
        if self.placed.get(node, set()) & parts:
            return self.vectors.get(node, np.zeros(F, np.float32))
        return np.zeros(F, np.float32)


class OracleLane:
    """Snapshots of a lane, one after the other, each kept whole."""

    def __init__(self, algorithm: str, parts: int, edge_life: int | None, segments: int) -> None:
        self.partitioner = create(algorithm, parts=parts, seed=3)
        self.kind = self.partitioner.kind
        self.parts, self.life = parts, edge_life
        self.graph = LiveGraph(node_features=F, segments=segments, edge_life=edge_life)
        self.ids: dict[int, int] = {}
        self.last: dict[tuple[int, int], int] = {}
        self.now = OracleSnapshot(-1, 0)
        self.snapshots: list[OracleSnapshot] = []
        self.event_parts: list[list[int] | None] = []

    def apply(self, tau: int, rows: list[Row], table) -> None:
        """Rows in log order, and the same as the log's table."""
        now = copy.deepcopy(self.now)
        now.tau = tau
        if self.life is not None:
            for pair in [pair for pair, last in self.last.items() if tau - last >= self.life]:
                del self.last[pair], now.pairs[pair], now.pair_parts[pair]
        delta = self.graph.apply(tau, table)
        assignment = self.partitioner.update(delta)
        _follow(assignment, now, one_place=self.kind == "vertex")
        edge = 0
        for row in rows:
            src = self.ids.setdefault(row.src, len(self.ids))
            if row.op == 0:
                vector = now.vectors.setdefault(src, np.zeros(F, np.float32))
                if row.features is not None:
                    start = row.offset or 0
                    vector[start : start + len(row.features)] = row.features
                continue
            pair = src, self.ids.setdefault(row.dst, len(self.ids))
            if row.op == 1:
                now.pairs[pair], self.last[pair] = row.weight, tau
                if self.kind == "edge":
                    part = int(assignment.event_part[edge])
                    now.pair_parts[pair] = {self.parts if part < 0 else part}
                else:
                    now.pair_parts[pair] = set()
            elif pair in now.pairs:
                del now.pairs[pair], now.pair_parts[pair], self.last[pair]
            edge += 1
        if self.kind == "vertex":
            now.pair_parts = {pair: {now.home[end] for end in pair} for pair in now.pairs}
        now.num_nodes = len(self.ids)
        self.now = now
        self.snapshots.append(copy.deepcopy(now))
        self.event_parts.append(None if assignment.event_part is None else assignment.event_part.tolist())


def _follow(assignment: Assignment, now: OracleSnapshot, *, one_place: bool) -> None:
    for node, part, why in zip(
        assignment.node.tolist(), assignment.part.tolist(), assignment.why.tolist(), strict=True
    ):
        if why == Why.GONE:
            now.home.pop(node)
            now.placed.pop(node)
        elif why == Why.DEMOTED:
            now.placed[node].remove(part)
        else:
            now.placed[node] = {part} if one_place else now.placed.get(node, set()) | {part}
            if why in (Why.NEW, Why.MOVED):
                now.home[node] = part


class _Scatter:
    """What the two random partitioners share: everything moves all the time, as no good one would do."""

    Options = Section

    def __init__(self, setting: PartitionerSetting, options: Section) -> None:
        self.parts, self.seed = setting.parts, setting.seed
        self._home = np.empty(0, np.int32)
        self._sets: dict[int, set[int]] = {}

    def home(self):
        return self._home

    def quality(self):
        return create("hash", parts=self.parts).quality()

    def state(self):
        node = [v for v, parts in self._sets.items() for _ in parts]
        part = [p for parts in self._sets.values() for p in parts]
        return pack({"home": self._home, "node": np.array(node, np.int64), "part": np.array(part, np.int64)})

    def restore(self, table) -> None:
        state = unpack(table)
        self._home = state["home"]
        self._sets = {}
        for node, part in zip(state["node"].tolist(), state["part"].tolist(), strict=True):
            self._sets.setdefault(node, set()).add(part)

    def _change(self, delta, sets: dict[int, set[int]], home: dict[int, int], event_part):
        """Rows of the assignment that lead from what is to ``sets`` and ``home``."""
        rows = []
        before = {v: int(self._home[v]) for v in np.flatnonzero(self._home >= 0).tolist()}
        self._home = np.full(delta.num_nodes, -1, np.int32)
        for v in sorted(before.keys() | home.keys()):
            if v not in home:
                rows.append((v, -1, Why.GONE))
                continue
            self._home[v] = home[v]
            old = self._sets.get(v, set())
            for p in sorted(old | sets[v]):
                if p == home[v] and before.get(v) != p:
                    rows.append((v, p, Why.NEW if v not in before else Why.MOVED))
                elif p not in old:
                    rows.append((v, p, Why.REPLICATED))
                elif p not in sets[v] and self.kind == "edge":
                    rows.append((v, p, Why.DEMOTED))
        self._sets = sets
        node, part, why = zip(*rows, strict=True) if rows else ((), (), ())
        return Assignment(
            np.array(node, np.int64), np.array(part, np.int32), np.array(why, np.int8), event_part
        )


@register
class ScatterVertex(_Scatter):
    """Every live node gets a random owner in most snapshots."""

    name = "scatter-vertex"
    kind = "vertex"

    def update(self, delta):
        rng = np.random.default_rng([self.seed, delta.tau + 10**6])
        home = {}
        for v in delta.live.tolist():
            known = v < len(self._home) and self._home[v] >= 0
            home[v] = int(self._home[v]) if known and rng.random() < 0.5 else int(rng.integers(self.parts))
        return self._change(delta, {v: {p} for v, p in home.items()}, home, None)


@register
class ScatterEdge(_Scatter):
    """Random sets of parts, random event parts, discards; nodes that aren't live sometimes stay."""

    name = "scatter-edge"
    kind = "edge"

    def update(self, delta):
        rng = np.random.default_rng([self.seed, delta.tau + 10**6])
        sets, home = {}, {}
        live = set(delta.live.tolist())
        for v in range(delta.num_nodes):
            known = v < len(self._home) and self._home[v] >= 0
            if v not in live and (not known or rng.random() < 0.5):
                continue
            if known and rng.random() < 0.4:
                sets[v], home[v] = set(self._sets[v]), int(self._home[v])
            else:
                sets[v] = {int(p) for p in rng.integers(self.parts, size=rng.integers(1, self.parts + 1))}
                home[v] = int(rng.choice(sorted(sets[v])))
        event_part = rng.integers(-1, self.parts, size=len(delta.op)).astype(np.int32)
        event_part[delta.op < 0] = -1
        return self._change(delta, sets, home, event_part)
