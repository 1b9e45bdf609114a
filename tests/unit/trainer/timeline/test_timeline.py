"""A lane's timeline under ``whole``: where it starts, what it skips, what it smooths, what it holds and what it sends."""

import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from compacted import SNAPSHOTS, grown, indexed
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.trainer_config import Smoothing, TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.nn.graph import CSRGraph
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import SnapshotTrainer
from freshet_graph.trainer.timeline.graph import TimelineView
from freshet_graph.trainer.timeline.timeline import Horizon
from freshet_graph.trainer.timeline.transfer import MODES
from freshet_graph.trainer.validation import require_trainable

LIFE = 2


NOBODY = np.empty(0, np.int64)
SMOOTHINGS = [
    {"kind": "none"}, {"kind": "edge-life", "length": 3}, {"kind": "m-product", "length": 3},
]  # fmt: skip


def whole(lane: LaneReader, store: Path, **more: Any) -> Session:
    """A session of ``whole``."""
    values = {
        "store": str(store), "lane": lane.header.lane, "model": "tgcn", "strategy": "whole", "window": 3,
        "model_params": {"hidden": 6, "signature": 4}, "optimisation": {"epochs": 1}, **more,
    }  # fmt: skip
    return Session(TrainerConfig.model_validate(values), lane, Ranks())


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A store with a lane, which tests only read; of ``kept`` snapshots, if they are given."""

    @cache
    def made(algorithm: str, edge_life: int | None, kept: int | None = None) -> Path:
        folder = tmp_path_factory.mktemp("stores") / "store"
        lane = Lane(name=algorithm, algorithm=algorithm, parts=2, edge_life=edge_life)
        return grown(folder, lane) if kept is None else indexed(folder, lane, end=SNAPSHOTS, kept=kept)

    return made


def session_over(folder: Path) -> tuple[Session, LaneReader]:
    """``whole`` over a lane whose edges end."""
    build_store(
        meetings(nodes=40, a_snapshot=25, snapshots=7), folder / "store", interval_us=SECOND, node_features=4,
        lanes=[Lane(name="hash", algorithm="hash", parts=2, edge_life=LIFE)], graph="meetings",
    )  # fmt: skip
    lane = LaneReader(folder / "store", "hash")
    config = TrainerConfig(store=str(folder / "store"), lane="hash", model="tgcn", strategy="whole", window=3)
    session = Session(config, lane, Ranks())
    return session, lane


def directed_entries(graph: CSRGraph, nodes: np.ndarray) -> dict[tuple[int, int], float]:
    """Values by dense ids of row and column."""
    rows = np.repeat(np.arange(graph.num_targets), np.diff(graph.indptr.numpy()))
    columns, values = graph.sources.numpy(), graph.values.tolist()
    return dict(zip(zip(nodes[rows].tolist(), nodes[columns].tolist(), strict=True), values, strict=True))


def plain_directed(lane: LaneReader, until: int) -> dict[tuple[int, int], float]:
    """Live pairs with weights after snapshot ``until``, without self-loops."""
    live: dict[tuple[int, int], tuple[int, float]] = {}
    for manifest in lane.manifests:
        if manifest.tau > until:
            break
        for row in lane.log.events(manifest.tau).to_pylist():
            pair = row["src_node"], row["dst_node"]
            if row["op"] == 1:
                live[pair] = manifest.tau, row["weight"]
            elif row["op"] == -1:
                live.pop(pair, None)
    return {pair: weight for pair, (tau, weight) in live.items() if until - tau < LIFE and pair[0] != pair[1]}


def test_directed_graphs_have_every_pair_both_ways_with_its_weight(tmp_path: Path) -> None:
    session, lane = session_over(tmp_path)
    seen = 0
    for manifest in lane.manifests:
        session.advance(manifest)
        horizon = session.strategy.timeline.before_newest(np.empty(0, np.int64))
        for tau, graph in zip(horizon.taus, horizon.directed, strict=True):
            expected = plain_directed(lane, tau)
            into = directed_entries(graph.into, horizon.nodes)
            assert {(src, dst): weight for (dst, src), weight in into.items()} == expected
            assert directed_entries(graph.out_of, horizon.nodes) == expected
            for way in (graph.into, graph.out_of):
                rows = way.sources.split(way.indptr.diff().tolist())
                assert all((row.diff() > 0).all() for row in rows)
            seen += len(expected)
    assert seen > 100


def told(horizon: Horizon) -> list[dict[Any, Any]]:
    """Each snapshot of a horizon by dense ids: values by pair, and inputs and presence by node."""
    found: list[dict[Any, Any]] = []
    for at, graph in enumerate(horizon.graphs()):
        rows = np.repeat(np.arange(graph.num_targets), np.diff(graph.indptr.numpy()))
        pairs = zip(horizon.nodes[rows].tolist(), horizon.nodes[graph.sources.numpy()].tolist(), strict=True)
        values = [1.0] * len(graph.sources) if graph.values is None else graph.values.tolist()
        inputs = torch.cat([horizon.inputs(at).features, horizon.inputs(at).structure], dim=1).tolist()
        there = horizon.present[at].tolist()
        found.append({**dict(zip(pairs, values, strict=True)), "tau": horizon.taus[at]})
        found[-1] |= {
            node: (there[place], inputs[place])
            for place, node in enumerate(horizon.nodes.tolist())
            if node >= 0
        }
    return found


def seen(session: Session, nodes: int) -> list[dict[Any, Any]]:
    """All that the newest horizon shows of all nodes."""
    return told(session.strategy.timeline.through_newest(np.arange(nodes)))


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=lambda each: each["kind"])
@pytest.mark.parametrize(
    ("algorithm", "edge_life"), [("hash", None), ("hash", 3), ("sep", None), ("distdy", 3)]
)
def test_a_timeline_that_starts_anywhere_or_leaves_snapshots_out_is_the_same(
    algorithm: str, edge_life: int | None, smoothing: dict[str, Any], store_of: Callable[..., Path]
) -> None:
    """From the first snapshot on, from the middle, with a gap within the horizon and one beyond it."""
    store = store_of(algorithm, edge_life)
    lane = LaneReader(store, algorithm)
    manifests = list(lane.manifests)
    straight, skips, jumps = (whole(lane, store, smoothing=smoothing) for _ in range(3))
    for at, manifest in enumerate(manifests):
        straight.advance(manifest)
        found = seen(straight, manifest.num_nodes)
        for session, gap in ((skips, 2), (jumps, 8)):
            if at % gap == 0:
                session.advance(manifest)
                assert seen(session, manifest.num_nodes) == found
        if at % 6 == 5:
            late = whole(lane, store, smoothing=smoothing)
            late.advance(manifest)
            assert seen(late, manifest.num_nodes) == found
    assert [each["tau"] for each in found] == [manifest.tau for manifest in manifests[-3:]]
    assert sum(len(each) for each in found) > 50


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=lambda each: each["kind"])
@pytest.mark.parametrize("edge_life", [None, 3, 12])
def test_compaction_and_a_dropped_base_under_it_change_nothing(
    edge_life: int | None, smoothing: dict[str, Any], store_of: Callable[..., Path]
) -> None:
    """What is older than the kept snapshots is in the bases of log and lane; smoothing knows the kept ones only."""
    kept = 8
    stores = [store_of("hash", edge_life), store_of("hash", edge_life, kept)]
    plain, compacted = lanes = [LaneReader(store, "hash") for store in stores]
    assert compacted.manifests.first == 20 - kept
    for first in (20 - kept, 20 - kept + 1, 17):
        sessions = [
            whole(lane, store, smoothing=smoothing) for lane, store in zip(lanes, stores, strict=True)
        ]
        for number in range(first, 20):
            for session in sessions:
                session.advance(session.lane.manifests[number])
            if (smoothing["kind"] == "none" and number >= 20 - kept + 2) or number >= 20 - kept + 5:
                nodes = plain.manifests[number].num_nodes
                assert seen(sessions[0], nodes) == seen(sessions[1], nodes)


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=lambda each: each["kind"])
def test_the_way_of_telling_changes_no_bit_of_what_is_learned(
    smoothing: dict[str, Any], tmp_path: Path
) -> None:
    lane = make_lane(tmp_path / "store", events=meetings(nodes=40, a_snapshot=30, snapshots=8))
    tables, sent = [], []
    for mode in MODES:
        session = whole(lane, tmp_path / "store", smoothing=smoothing, strategy_params={"transfer": mode})
        learning, counts = SnapshotTrainer(session), Counter[tuple[str, str]]()
        for manifest in lane.manifests:
            session.advance(manifest)
            report = learning.learn(session.task.examples(session.view, session.strategy), 1.0)
            counts += report.figures.get("transfer_bytes", {})
        tables.append(session.strategy.embeddings(np.arange(manifest.num_nodes)))
        sent.append(counts)
    assert all(torch.equal(tables[0], table) for table in tables)
    assert tables[0].abs().max() > 0
    graphs = [{mode for kind, mode in counts if kind != "features"} for counts in sent]
    derived = "counts" if smoothing["kind"] != "none" else "derived"
    assert graphs[0] == {"whole"}
    assert graphs[1] == {"whole", "esdg"}
    assert derived in graphs[3] | graphs[4]
    assert all(counts["features", "whole"] for counts in sent)


def test_the_m_product_takes_means_of_inputs_too(tmp_path: Path) -> None:
    """A node's features, degree and activity are means over the raw snapshots, as its edges' values are."""
    table = pa.table(
        {
            "op": [0, 1, 1, 0, 1, 1], "src": [0, 0, 0, 0, 0, 2], "dst": [None, 1, 1, None, 2, 0],
            "t": [0, 1, 2, SECOND, SECOND + 1, SECOND + 2], "weight": [1.0] * 6,
            "features": [[2.0], None, None, [5.0], None, None], "feature_offset": [None] * 6,
            "label": [None] * 6, "event_id": [None] * 6,
        }, schema=event_schema("int"),
    )  # fmt: skip
    lane = make_lane(tmp_path / "store", events=table)
    session = whole(lane, tmp_path / "store", smoothing={"kind": "m-product", "length": 2})
    for manifest in lane.manifests:
        session.advance(manifest)
    first, second = seen(session, 3)
    assert (first[0, 1], second[0, 1], second[0, 2], second[2, 0]) == (2.0, 1.0, 1.0, 1.0)
    logs = np.log1p(np.float32([1, 2, 0])), np.log1p(np.float32([1, 1, 1]))
    np.testing.assert_allclose(first[0][1], [2.0, *logs[0]], rtol=1e-6)
    np.testing.assert_allclose(second[0][1], [3.5, *(logs[0] + logs[1]) / 2], rtol=1e-6)
    assert second[1] == (True, [0.0, np.log1p(np.float32(1)) / 2, 0.0, np.log1p(np.float32(2)) / 2])


def stream_of(live: int, changes: int, snapshots: int) -> pa.Table:
    """A large snapshot, then small ones; in each half of the changes are new pairs, half are deletes of old ones."""
    rng = np.random.default_rng(0)
    nodes = live // 8
    keys = rng.choice(nodes * nodes, live + changes * snapshots // 2, replace=False)
    src, dst = keys // nodes, keys % nodes
    half = changes // 2
    op, rows, t = [np.ones(live, np.int8)], [np.arange(live)], [np.zeros(live, np.int64)]
    for tau in range(1, snapshots):
        op += [np.ones(half, np.int8), -np.ones(half, np.int8)]
        rows += [live + (tau - 1) * half + np.arange(half), (tau - 1) * half + np.arange(half)]
        t.append(np.full(2 * half, tau * SECOND))
    at = np.concatenate(rows)
    columns = {
        "op": np.concatenate(op), "src": src[at], "dst": dst[at], "t": np.concatenate(t),
        "weight": np.ones(len(at), np.float32),
    }  # fmt: skip
    schema = event_schema("int")
    return pa.table(
        [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else pa.nulls(len(at), field.type)
            for field in schema
        ],
        schema=schema,
    )


@pytest.mark.parametrize("smoothing", SMOOTHINGS[:2], ids=lambda each: each["kind"])
def test_an_advance_touches_what_changed_and_not_what_lives(
    smoothing: dict[str, Any], tmp_path: Path
) -> None:
    """Whatever is done to all live pairs needs an array of them: the memory that an advance takes tells."""
    peaks = []
    for live in (4_000, 64_000):
        events = stream_of(live, changes=200, snapshots=16)
        lane = make_lane(tmp_path / f"store{live}", events=events)
        view = TimelineView(lane, 3, Smoothing(**smoothing), NodeNames())
        taken = []
        for manifest in lane.manifests:
            tracemalloc.start()
            view.advance(manifest)
            taken.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        peaks.append(np.median(taken[5:]))
    assert peaks[1] < 2 * peaks[0]


def turnover(snapshots: int, a_generation: int, nodes: int) -> pa.Table:
    """All nodes are others every so many snapshots; each generation's old pairs are deleted as the next begins."""
    rng = np.random.default_rng(1)
    rows: list[tuple[int, int, int, int]] = []
    live: set[tuple[int, int]] = set()
    for tau in range(snapshots):
        generation = tau // a_generation
        if tau % a_generation == 0:
            rows += [(-1, src, dst, tau * SECOND + 1) for src, dst in sorted(live)]
            live = set()
        for src, dst in (generation * nodes + rng.integers(0, nodes, (2 * nodes, 2))).tolist():
            live.add((src, dst))
            rows.append((1, src, dst, tau * SECOND + 2))
    op, src, dst, t = (np.array(column) for column in zip(*rows, strict=True))
    known = {"op": op.astype(np.int8), "src": src, "dst": dst, "t": t, "weight": np.ones(len(op), np.float32)}
    schema = event_schema("int")
    return pa.table(
        [
            pa.array(known[each.name]).cast(each.type) if each.name in known else pa.nulls(len(op), each.type)
            for each in schema
        ],
        schema=schema,
    )


@pytest.mark.slow
def test_memory_follows_the_nodes_that_live(tmp_path: Path) -> None:
    """1,000 snapshots, all nodes turn over every 20: what the last half holds is flat, however many ids there were."""
    lane = make_lane(tmp_path / "store", events=turnover(1000, 20, 12))
    session = whole(lane, tmp_path / "store", window=2)
    held, rows = [], []
    for manifest in lane.manifests:
        session.advance(manifest)
        horizon = session.strategy.timeline.through_newest(NOBODY)
        held.append(
            session.strategy.held_bytes["timeline"]
            + sum(
                each.features.nbytes + each.structure.nbytes
                for each in map(horizon.inputs, range(len(horizon.taus)))
            )
            + sum(graph.sources.nbytes + graph.indptr.nbytes for graph in horizon.graphs())
            + sum(snapshot.nbytes for snapshot in session.view.timeline.snapshots)
        )
        rows.append(len(horizon.nodes))
    assert manifest.num_nodes >= 45 * 12
    half = np.array(held[500:], float)
    a_hundred = 100 * np.polyfit(np.arange(len(half)), half, 1)[0] / half.mean()
    assert abs(a_hundred) < 0.01
    assert max(rows) <= 2 * 12
    assert max(half) < 1.1 * max(held[40:500])


def test_slots_are_given_again_and_all_numbered_anew_when_most_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that was large once leaves no rows behind; what is left has the same graphs."""
    monkeypatch.setattr("freshet_graph.trainer.timeline.nodes.FEW", 256)
    large = turnover(4, 2, 300)
    build_store(
        pa.concat_tables([large, _later(turnover(12, 4, 10), 4)]), tmp_path / "store", interval_us=SECOND,
        lanes=[Lane(name="hash", algorithm="hash", parts=2, edge_life=2)], graph="g",
    )  # fmt: skip
    lane = LaneReader(tmp_path / "store", "hash")
    session = whole(lane, tmp_path / "store", window=2)
    rows = []
    for manifest in lane.manifests:
        session.advance(manifest)
        late = whole(lane, tmp_path / "store", window=2)
        late.advance(manifest)
        assert seen(session, manifest.num_nodes) == seen(late, manifest.num_nodes)
        rows.append(len(session.strategy.timeline.nodes))
    assert max(rows) > 500
    assert rows[-1] < 100


def _later(events: pa.Table, snapshots: int) -> pa.Table:
    columns = {name: events[name].to_numpy(zero_copy_only=False) for name in ("src", "dst", "t")}
    moved = events
    for name, by in (("src", 10_000), ("dst", 10_000), ("t", snapshots * SECOND)):
        at = events.schema.get_field_index(name)
        moved = moved.set_column(at, events.schema.field(at), pa.array(columns[name] + by))
    return moved


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"strategy": "vertex", "horizon": 6},
            "key horizon means nothing under strategy vertex. Choose strategy group or hybrid or snapshot or whole, or leave",
        ),
        (
            {"strategy": "vertex", "smoothing": {"kind": "edge-life", "length": 2}},
            "key smoothing means nothing under strategy vertex. Choose strategy group or snapshot or whole, or leave the key out",
        ),
        ({"strategy": "whole", "strategy_params": {"transfer": "all"}}, "transfer: must be 'whole', 'esdg', 'derived'"),
    ],
)  # fmt: skip
def test_keys_that_do_not_go_together_are_refused(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Failure, match=sentence):
        require_trainable(TrainerConfig.model_validate({"model": "sage-linear", **more}))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"window": 4, "horizon": 3}, "key horizon: 3 snapshots are fewer than the window of 4"),
        ({"smoothing": {"length": 3}}, "length goes with kind: edge-life or kind: m-product"),
    ],
)
def test_values_that_contradict_each_other_are_refused(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainerConfig.model_validate(more)


def test_a_horizon_longer_than_the_window_is_passed_over(tmp_path: Path) -> None:
    lane = make_lane(tmp_path / "store")
    session = whole(lane, tmp_path / "store", window=2, horizon=4, strategy_params={"supervise": "horizon"})
    for manifest in lane.manifests:
        session.advance(manifest)
    assert session.strategy.timeline.before_newest(NOBODY).taus == [
        manifest.tau for manifest in lane.manifests[-5:-1]
    ]
    assert session.strategy.needs.example_sets == 4
