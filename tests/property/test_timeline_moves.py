"""Any stream: the graph of every snapshot, however a device comes to it, is the one that plain dictionaries have."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.schemas.trainer_config import Smoothing
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.stream.store.window.pairs import ChangedPairs
from freshet_graph.trainer.nn.graph import CSRGraph
from freshet_graph.trainer.timeline.device import DeviceTimeline
from freshet_graph.trainer.timeline.graph import TimelineGraph
from freshet_graph.trainer.timeline.timeline import Timeline
from freshet_graph.trainer.timeline.transfer import MODES, Mode, Transfer

CPU = torch.device("cpu")
Row = tuple[int, int, int, float]
Pair = tuple[int, int]

WEIGHTS = st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.1, -0.7, 300.0])
ROWS = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, -1]), st.integers(0, 9), st.integers(0, 9), WEIGHTS), max_size=8
)
STREAMS = st.lists(st.tuples(st.integers(1, 3), ROWS), min_size=2, max_size=10)


def events_of(rows: list[Row]) -> EventColumns:
    op, src, dst, weight = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    return cast(
        EventColumns,
        SimpleNamespace(
            op=np.array(op, np.int8), src=np.array(src, np.int64), dst=np.array(dst, np.int64),
            weight=np.array(weight, np.float32),
        ),
    )  # fmt: skip


class Plain:
    """All snapshots of a stream as dictionaries; ``first`` is the oldest that smoothing knows."""

    def __init__(self, stream: list[tuple[int, list[Row]]], life: int | None, smoothing: Smoothing) -> None:
        self.taus: list[int] = []
        self.live: list[dict[Pair, np.float32]] = []
        self.raw: list[dict[Pair, np.float32]] = []
        self.rows = [rows for _, rows in stream]
        self._smoothing = smoothing
        seen: dict[Pair, tuple[int, np.float32]] = {}
        tau = 0
        for gap, rows in stream:
            tau += gap
            sums: dict[Pair, float] = {}
            for op, src, dst, weight in rows:
                if op == 1:
                    seen[src, dst] = tau, np.float32(weight)
                    sums[src, dst] = sums.get((src, dst), 0.0) + abs(float(np.float32(weight)))
                else:
                    seen.pop((src, dst), None)
            seen = {pair: (then, w) for pair, (then, w) in seen.items() if life is None or tau - then < life}
            self.taus.append(tau)
            self.live.append({pair: weight for pair, (_, weight) in seen.items()})
            self.raw.append({pair: np.float32(total) for pair, total in sums.items()})

    def graph(self, at: int, first: int, *, directed: bool) -> dict[Pair, np.float32]:
        """Entries by row and column (directed: by source and target)."""
        smoothing = self._smoothing
        if smoothing.kind == "none":
            if directed:
                return {pair: weight for pair, weight in self.live[at].items() if pair[0] != pair[1]}
            ends = {pair for u, v in self.live[at] for pair in ((u, v), (v, u)) if u != v}
            return dict.fromkeys(ends, np.float32(1))
        chosen = [
            each
            for each in range(first, at + 1)
            if (
                self.taus[each] > self.taus[at] - smoothing.length
                if smoothing.kind == "edge-life"
                else each > at - smoothing.length
            )
        ]
        found: dict[Pair, np.float32] = {}
        for each in chosen:
            part = self.raw[each] if directed else self._undirected(each)
            for (u, v), value in part.items():
                if u != v:
                    found[u, v] = np.float32(found.get((u, v), np.float32(0)) + value)
        divisor = np.float32(len(chosen) if smoothing.kind == "m-product" else 1)
        return {pair: value / divisor for pair, value in found.items()}

    def _undirected(self, at: int) -> dict[Pair, np.float32]:
        sums: dict[Pair, float] = {}
        for op, u, v, weight in self.rows[at]:
            if op == 1:
                pair = min(u, v), max(u, v)
                sums[pair] = sums.get(pair, 0.0) + abs(float(np.float32(weight)))
        both = {(v, u): np.float32(total) for (u, v), total in sums.items()}
        return {**both, **{pair: np.float32(total) for pair, total in sums.items()}}


class PlainWindow:
    """What a timeline reads of a window, from dictionaries."""

    def __init__(self, plain: Plain) -> None:
        self._plain = plain

    def pairs(self, tau: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        live = self._at(tau)
        src, dst = np.array(list(live), np.int64).reshape(-1, 2).T
        return src, dst, np.array(list(live.values()), np.float32)

    def changes(self, tau: int) -> ChangedPairs:
        before, after = self._plain.live[self._plain.taus.index(tau) - 1], self._at(tau)
        changed = sorted(pair for pair in before | after if before.get(pair) != after.get(pair))
        keys = np.array([src << 32 | dst for src, dst in changed], np.int64)
        values = [[live.get(pair, np.nan) for pair in changed] for live in (before, after)]
        return ChangedPairs(keys, *(np.array(each, np.float32) for each in values))

    def holds(self, keys: np.ndarray, tau: int) -> np.ndarray:
        return np.array([(key >> 32, key & 0xFFFFFFFF) in self._at(tau) for key in keys.tolist()], bool)

    def _at(self, tau: int) -> dict[Pair, np.float32]:
        return self._plain.live[self._plain.taus.index(tau)]


def entries(graph: CSRGraph, ids: np.ndarray) -> Iterator[tuple[Pair, float | None]]:
    columns, values = graph.sources.tolist(), graph.values
    assert graph.indptr.dtype == graph.sources.dtype == torch.int32
    rows = np.repeat(np.arange(graph.num_targets), np.diff(graph.indptr.numpy())).tolist()
    assert list(zip(rows, columns, strict=True)) == sorted(set(zip(rows, columns, strict=True)))
    for at, (row, column) in enumerate(zip(rows, columns, strict=True)):
        yield (int(ids[row]), int(ids[column])), None if values is None else values[at].item()


def check(
    graph: Any, expected: dict[Pair, np.float32], ids: np.ndarray, *, directed: bool, smooth: bool
) -> None:
    if directed:
        assert {(u, v): w for (v, u), w in entries(graph.into, ids)} == expected
        assert dict(entries(graph.out_of, ids)) == expected
        return
    assert graph.symmetric
    found = dict(entries(graph, ids))
    assert found == (expected if smooth else dict.fromkeys(expected))


@settings(deadline=None, max_examples=75)
@given(
    stream=STREAMS,
    life=st.none() | st.integers(1, 4),
    length=st.integers(1, 4),
    smoothing=st.just(Smoothing())
    | st.builds(Smoothing, kind=st.sampled_from(["edge-life", "m-product"]), length=st.integers(1, 10)),
    directed=st.booleans(),
    data=st.data(),
)
def test_every_snapshot_is_the_one_that_is_built_from_scratch(
    stream: list[tuple[int, list[Row]]],
    life: int | None,
    length: int,
    smoothing: Smoothing,
    directed: bool,
    data: Any,
) -> None:
    """Asked for in any order, by every mode, in a stream that may be begun anew anywhere; equal to the last bit."""
    plain = Plain(stream, life, smoothing)
    host = TimelineGraph(length, smoothing, cast(Any, PlainWindow(plain)))
    timeline = Timeline(CPU, "auto")
    view: Any = SimpleNamespace(timeline=host)
    devices = {
        mode: DeviceTimeline(host, timeline.nodes, Transfer(CPU), mode, directed=directed) for mode in MODES
    }
    first = 0
    for at, (tau, (_, rows)) in enumerate(zip(plain.taus, stream, strict=True)):
        if at == 0 or data.draw(st.sampled_from([False] * 7 + [True])):
            host.begin(at, tau, 10, events_of(rows))
            first = at
        else:
            host.advance(at, tau, 10, events_of(rows))
        timeline.take_in(view)
        ids = timeline.nodes.ids
        assert len(set(ids[ids >= 0].tolist())) == np.count_nonzero(ids >= 0)
        for mode, device in devices.items():
            for asked in data.draw(st.lists(st.sampled_from(host.taus), max_size=2)):
                number = plain.taus.index(asked)
                expected = plain.graph(number, first, directed=directed)
                graph = device.graph_of(asked)
                check(graph, expected, ids, directed=directed, smooth=host.smooths)
                if not host.smooths and not directed:
                    assert {node for pair in expected for node in pair} <= set(ids.tolist()), mode


def test_a_snapshot_that_is_not_on_the_timeline_is_refused() -> None:
    stream = [(1, [(1, 0, 1, 1.0)])]
    host = TimelineGraph(2, Smoothing(), cast(Any, PlainWindow(Plain(stream, None, Smoothing()))))
    host.begin(0, 1, 2, events_of(stream[0][1]))
    timeline = Timeline(CPU, "auto")
    timeline.take_in(cast(Any, SimpleNamespace(timeline=host)))
    with pytest.raises(KeyError, match="snapshot 7 is not on the timeline: it has \\[1\\]"):
        timeline.graph(7)


@pytest.mark.parametrize("mode", MODES)
def test_sums_are_taken_anew_from_the_oldest_interval_on(mode: Mode) -> None:
    """In float32 another order, or what is left when the oldest is subtracted, is another number."""
    weights = [0.3, 1e6, 0.1, 0.7, 0.9]
    host = TimelineGraph(2, Smoothing(kind="edge-life", length=3), cast(Any, None))
    timeline = Timeline(CPU, "auto")
    view: Any = SimpleNamespace(timeline=host)
    device = DeviceTimeline(host, timeline.nodes, Transfer(CPU), mode)
    for tau, weight in enumerate(weights):
        events = events_of([(1, 0, 1, weight)])
        if tau:
            host.advance(tau, tau, 2, events)
        else:
            host.begin(0, 0, 2, events)
        timeline.take_in(view)
        expected = np.float32(0)
        for each in weights[max(0, tau - 2) : tau + 1]:
            expected = np.float32(expected + np.float32(each))
        assert device.graph_of(tau).values.tolist() == [expected, expected]
    three = np.float32(weights[2:])
    assert three[0] + three[1] + three[2] != three[2] + three[1] + three[0]
