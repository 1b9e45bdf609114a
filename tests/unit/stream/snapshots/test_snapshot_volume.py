"""The volumes of a snapshot partition and of vertex partitions equal those counted row by row."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from freshet_graph.schemas.trainer_config import Smoothing
from freshet_graph.stream.snapshots.sealing import slice_events
from freshet_graph.trainer.timeline.graph import TimelineGraph

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "benchmarks"))

import snapshot_volume
from snapshot_volume import HYPERGRAPH, Size, Stream, counted, nets, online, size_of, stream_of

NODES, SNAPSHOTS, INTERVAL_S = 24, 8, 10
SET = "drawn"


@pytest.fixture(params=[(1, False), (3, False), (None, True)], ids=["raw", "smoothed", "with deletes"])
def stream(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Events with self-loops, both directions and repeats in snapshots of uneven size, one of them without any."""
    edge_life, deletes = request.param
    draws = np.random.default_rng(4)
    n = 240
    src, dst = draws.integers(0, NODES, (2, n)) % draws.integers(1, NODES + 1, (2, n))
    t = np.sort(draws.integers(0, SNAPSHOTS * INTERVAL_S, n))
    t[t // INTERVAL_S == 2] += INTERVAL_S
    columns = {"src": src, "dst": dst, "t": np.sort(t)}
    if deletes:
        columns["op"] = np.where(draws.random(n) < 0.4, -1, 1)
    pq.write_table(pa.table(columns), tmp_path / "drawn.parquet")
    sets = {SET: ("drawn", edge_life, {"interval_us": INTERVAL_S * 1_000_000})}
    monkeypatch.setattr(snapshot_volume, "SETS", sets)
    found = stream_of(tmp_path, SET)
    assert found is not None
    return found


def neighbours(stream: Stream) -> list[dict[int, set[int]]]:
    """Of each snapshot, what every node with an edge is joined to, from the events alone."""
    found, last = [], {}
    for tau, events in slice_events(stream.events, **stream.cut):
        for op, u, v in zip(*(events[c].to_pylist() for c in ("op", "src_node", "dst_node")), strict=True):
            if op > 0:
                last[u, v] = tau
            else:
                last.pop((u, v), None)
        joined: dict[int, set[int]] = {}
        for (u, v), then in last.items():
            if u != v and (stream.edge_life is None or tau - then < stream.edge_life):
                joined.setdefault(u, set()).add(v)
                joined.setdefault(v, set()).add(u)
        found.append(joined)
    return found


def foreign(joined: dict[int, set[int]], owner: Sequence[int]) -> int:
    return sum(len({owner[u] for u in near} - {owner[v]}) for v, near in joined.items())


def redistributed(active: list[list[int]], parts: int, layers: int, nodes: int, turn: int) -> int:
    """Rows that cross ranks: contiguous snapshots a rank, node v with rank (v + turn) mod P, each exchange on its own."""
    sent = 0
    for exchange in ["convolved", "learned"] * layers:
        for tau, rows in enumerate(active):
            holder = tau * parts // len(active)
            for v in rows:
                owner = (v + turn) % parts
                there, goes = (holder, owner) if exchange == "convolved" else (owner, holder)
                sent += there != goes
    last = sum(
        (v + turn) % parts != tau * parts // len(active) for tau, rows in enumerate(active) for v in rows
    )
    assert nodes > max((v for rows in active for v in rows), default=0)
    return sent - last  # what the last layer has learned stays with the nodes' owners


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_snapshot_partition_sends_what_is_counted_row_by_row(
    stream: Stream, parts: int, layers: int
) -> None:
    joined, size = neighbours(stream), size_of(stream)
    assert (size.snapshots, size.nodes) == (len(joined), stream.nodes)
    assert size.active == sum(map(len, joined)) < size.snapshots * size.nodes
    even = Size(SNAPSHOTS, NODES, 0)  # P divides both
    every = [list(range(NODES))] * SNAPSHOTS
    assert even.sent(parts, layers, all_rows=True) == redistributed(every, parts, layers, NODES, turn=0)
    active = [sorted(each) for each in joined]
    by_turn = [redistributed(active, parts, layers, size.nodes, turn) for turn in range(parts)]
    assert size.sent(parts, layers, all_rows=False) == pytest.approx(np.mean(by_turn), rel=1e-12)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_vertex_partition_sends_a_row_to_each_foreign_part_with_a_neighbour(
    stream: Stream, parts: int
) -> None:
    owner = np.random.default_rng(1).integers(0, parts, stream.nodes).astype(np.int32)
    found = counted(stream, {("fixed", parts): lambda _: owner})["fixed", parts]
    assert found.foreign == sum(foreign(joined, owner) for joined in neighbours(stream))
    assert found.moved == 0


@pytest.mark.parametrize("name", ["hash", "metis", "distdy"])
def test_owners_are_those_of_the_snapshot_and_moves_are_counted(stream: Stream, name: str) -> None:
    """A node that was gone and comes back elsewhere has moved, too."""
    run, seen = online(name, 3, stream), []

    def owners(delta: Any) -> Any:
        seen.append(run(delta).copy())
        return seen[-1]

    found = counted(stream, {(name, 3): owners})[name, 3]
    assert found.foreign == sum(foreign(*each) for each in zip(neighbours(stream), seen, strict=True))
    moved = 0
    for v in range(stream.nodes):
        had = [owner[v] for owner in seen if v < len(owner) and owner[v] >= 0]
        moved += sum(a != b for a, b in pairwise(had))
    assert found.moved == moved


def test_moves_are_those_since_a_node_was_last_seen(stream: Stream) -> None:
    """Node 0: owner 0, gone, then 1 and for ever 1; all others stay."""
    told = iter([0, -1, 1, *[1] * SNAPSHOTS])

    def owners(delta: Any) -> Any:
        owner = np.zeros(stream.nodes, np.int32)
        owner[0] = next(told)
        return owner

    linked = pc.and_(*(pc.greater(stream.events[end], 0) for end in ("src_node", "dst_node")))
    kept = Stream(stream.events.filter(linked), NODES, 1, stream.cut)
    assert counted(kept, {("told", 2): owners})["told", 2].moved == 1


def test_the_hypergraphs_metric_is_the_volume(stream: Stream) -> None:
    """Σ over nets of the parts they connect less one, weighted by the snapshots in which a net is the same."""
    owner = np.random.default_rng(2).integers(0, 4, stream.nodes).astype(np.int32)
    pins = nets(stream)
    assert sum(pins.values()) == size_of(stream).active
    metric = sum(n * (len(set(owner[np.frombuffer(net, np.int32)])) - 1) for net, n in pins.items())
    assert metric == counted(stream, {("fixed", 4): lambda _: owner})["fixed", 4].foreign


def test_snapshots_are_those_of_the_trainers_timeline(stream: Stream) -> None:
    """With smoothing by edge life; deletes do not smooth."""
    if stream.edge_life is None:
        return
    smoothing = Smoothing(kind="edge-life", length=stream.edge_life)
    host = TimelineGraph(1, smoothing, None)  # type: ignore[arg-type]  # with smoothing no window is asked
    for number, (tau, events) in enumerate(slice_events(stream.events, **stream.cut)):
        named = {"op": "op", "src": "src_node", "dst": "dst_node", "weight": "weight"}
        columns = SimpleNamespace(**{key: events[name].to_numpy() for key, name in named.items()})
        if number:
            host.advance(number, tau, NODES, columns)  # type: ignore[arg-type]
        else:
            host.begin(number, tau, NODES, columns)  # type: ignore[arg-type]
        keys = host.whole(host.place(tau), directed=False).keys
        joined = neighbours(stream)[number]
        assert {(key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()} == {
            (u, v) for u, near in joined.items() for v in near if u < v
        }


@pytest.mark.parametrize("library", [True, False])
def test_the_table_has_a_row_for_each_number_of_parts_and_says_what_is_missing(
    library: bool,
    stream: Stream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Mt-KaHyPar stands for itself: its parts are by id here."""
    owners = {parts: np.arange(stream.nodes, dtype=np.int32) % parts for parts in (2, 3)}
    monkeypatch.setattr(snapshot_volume, "mtkahypar", object() if library else None)
    monkeypatch.setattr(
        snapshot_volume, "hypergraph", lambda pins, nodes, parts, seed: iter([owners[p] for p in parts])
    )
    arguments = ["--data", str(tmp_path), "--parts", "2", "3", "--layers", "3", "--width", "50000"]
    monkeypatch.setattr(sys, "argv", ["snapshot_volume.py", SET, *arguments])
    snapshot_volume.main()
    told, _, table = capsys.readouterr().out.partition("| set")
    assert ("mtkahypar is not installed" in told) is not library
    assert "snapshot_volume.py drawn --data" in told
    titles, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in f"| set{table}".splitlines()
    ]
    active = size_of(stream).active

    def millions(exchanges: int, rows: float) -> str:
        return f"{50_000 * (exchanges * rows) / 1e6:.3g}"

    for parts, row in zip((2, 3), rows, strict=True):
        cells = dict(zip(titles, row, strict=True))
        assert cells["P"] == str(parts)
        sent = {
            name: counted(stream, {(name, parts): online(name, parts, stream)})[name, parts].foreign
            for name in ("hash", "metis", "distdy")
        }
        if library:
            sent[HYPERGRAPH] = sum(foreign(joined, owners[parts]) for joined in neighbours(stream))
            assert cells["hypergraph"] == millions(3, sent[HYPERGRAPH])
        else:
            assert cells["hypergraph"] == "–"
        assert cells["active rows"] == millions(5, active * (parts - 1) / parts)
        assert cells["METIS"] == millions(3, sent["metis"])
        assert cells["DistDy (+ moved)"].startswith(f"{millions(3, sent['distdy'])} (+ ")
        sent["distdy"] += counted(stream, {("distdy", parts): online("distdy", parts, stream)})[
            "distdy", parts
        ].moved
        least = min(sent, key=lambda name: sent[name])
        assert cells["least"] == f"{sent[least] / active:.2f}"
        above = sent[least] / active > (2 - 1 / 3) * (parts - 1) / parts
        assert cells["sends least"] == ("snapshot" if above else least)
