"""What is beyond the budget is forgotten, what is left is as if the rest had never been, and who returns is new."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import generate_latest
from small_trainers import EVENT_MODEL, config_for, lines, run
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.forgetting import longest_unseen
from freshet_graph.trainer.data.examples import Queries
from freshet_graph.trainer.data.history import Encounter, History, Inserts
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.data.temporal_graph import TemporalGraph
from freshet_graph.trainer.data.temporal_sampler import sample_before
from freshet_graph.trainer.tasks.interface import TASKS
from freshet_graph.trainer.tasks.link_prediction import LinkPrediction


def test_nodes_unseen_for_longest_go_and_those_of_the_newest_snapshot_stay() -> None:
    last_seen = np.array([5, 1, 9, 1, 7, -(1 << 62), 8, 6])
    assert longest_unseen(last_seen, 8, since_us=8).tolist() == list(range(8))
    assert longest_unseen(last_seen, 7, since_us=9).tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert longest_unseen(last_seen, 1, since_us=7).tolist() == [2, 4, 6]


def test_a_forgotten_name_comes_back_as_a_new_number() -> None:
    names = NodeNames()
    names.meet(5)
    ids = np.array([4, 0])
    assert names.numbers(ids) is ids
    names.keep(np.array([1, 3, 4]))
    assert names.ids(np.arange(len(names))).tolist() == [1, 3, 4]
    names.meet(7)
    assert names.numbers(np.array([5, 6, 4, 0, 1, 0])).tolist() == [3, 4, 2, 5, 0, 5]
    again = NodeNames()
    again.restore(names.state())
    assert again.find(np.array([0, 2, 6])).tolist() == [5, -1, 4]
    assert again.numbers(np.array([0, 2, 6])).tolist() == [5, 6, 4]
    assert again.ids(np.arange(len(again))).tolist() == [1, 3, 4, 5, 6, 0, 2]


@pytest.mark.parametrize("seed", range(5))
def test_a_graph_that_forgot_is_one_that_never_knew(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, events = 40, 300
    src, dst = rng.integers(0, nodes, (2, events))
    times = np.sort(rng.integers(0, 500, events))
    graph = TemporalGraph()
    for half in (slice(0, 200), slice(200, events)):
        graph.append(src[half], dst[half], times[half], nodes)
    kept = np.flatnonzero(rng.random(nodes) < 0.6)
    held = np.isin(src, kept) & np.isin(dst, kept)
    held[:60] = False
    before = np.concatenate([[0], np.cumsum(held)])
    graph.forget(kept, before)
    place = np.full(nodes, -1)
    place[kept] = np.arange(len(kept))
    fresh = TemporalGraph()
    fresh.append(place[src[held]], place[dst[held]], times[held], len(kept))
    for name, column in fresh.state().items():
        np.testing.assert_array_equal(graph.state()[name], column)
    more = rng.integers(0, len(kept) + 5, (2, 100))
    for either in (graph, fresh):  # both grow on
        either.append(more[0], more[1], np.arange(500, 600), len(kept) + 5)
    asked = np.arange(len(kept) + 5)
    one, other = (sample_before(either, asked, 590, 7) for either in (graph, fresh))
    for name in ("node", "event", "time_us", "count"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_history_forgets_nodes_and_pairs_that_did_not_meet() -> None:
    history = History()
    src, dst = np.array([0, 1, 2, 0, 3]), np.array([1, 2, 3, 1, 1])
    history.remember(Inserts(src, dst, np.arange(5) * SECOND, np.zeros(5, np.bool_)), 4)
    assert (
        history.forget(np.array([0, 1, 3]), 2 * SECOND) == 2
    )  # 1 → 2 and 2 → 3 were of node 2; 0 → 1 met again
    asked_src, asked_dst = np.array([0, 2, 1]), np.array([1, 1, 0])
    now = Inserts(np.array([0]), np.array([1]), np.array([10 * SECOND]), np.zeros(1, np.bool_))
    answers = history.replay(now, 3, np.zeros(3, np.int64), asked_src, asked_dst)
    assert answers[:, Encounter.PAIR_AGE].tolist() == [7, 6, np.inf]
    assert answers[:, Encounter.REVERSE_AGE].tolist() == [np.inf, np.inf, 7]
    assert answers[:, Encounter.SRC_OUT_COUNT].tolist() == [2, 1, 1]
    assert history.destinations.tolist() == [1, 2]


def test_a_budget_that_is_never_reached_changes_no_number(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    found = []
    for name, budget in (("none", {}), ("wide", {"nodes": 10_000, "events": 100_000})):
        config = config_for(tmp_path, checkpoint=str(tmp_path / name), budget=budget, **EVENT_MODEL)
        run(config)
        found.append(lines(config))
    assert found[0] == found[1]


def strangers(snapshots: int, a_snapshot: int = 40) -> pa.Table:
    """In every snapshot nodes that were never seen before, meeting each other."""
    rng = np.random.default_rng(3)
    t = np.concatenate(
        [np.sort(rng.integers(0, SECOND, a_snapshot)) + tau * SECOND for tau in range(snapshots)]
    )
    base = np.repeat(np.arange(snapshots) * 20, a_snapshot)
    ends = [base + rng.integers(0, 10, len(t)), base + 10 + rng.integers(0, 10, len(t))]
    columns = {"op": np.ones(len(t)), "src": ends[0], "dst": ends[1], "t": t, "weight": np.ones(len(t))}
    schema = event_schema("int")
    return pa.table({name: columns.get(name, [None] * len(t)) for name in schema.names}, schema=schema)


def test_what_is_held_stays_within_the_budget_and_is_counted(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=strangers(12))
    config = config_for(tmp_path, **{**EVENT_MODEL, "budget": {"nodes": 64, "events": 100}})
    trainer = run(config)
    assert len(trainer.session.names) <= 64 + 20
    assert len(trainer.session.strategy.event_times) <= 100 + 40
    assert trainer.session.task.history.pairs.size <= 100 + 40
    mail = trainer.session.strategy.state()["streams"]["0"]["mail"]
    assert len(mail) <= (64 + 20) * 2
    evicted = sum(line["evicted"] for line in lines(config))
    assert evicted == trainer.lane.manifests[-1].num_nodes - len(trainer.session.names)
    text = generate_latest(trainer.metrics.registry).decode()
    assert f'freshet_trainer_evicted_total{{graph="meetings",kind="node"}} {evicted}.0' in text
    assert (
        f'freshet_trainer_remembered{{graph="meetings",kind="node"}} {len(trainer.session.names)}.0' in text
    )


class Composed:
    """A task of another package: link prediction, but no subclass of it."""

    name = "composed"
    Options, head = LinkPrediction.Options, LinkPrediction.head
    subject, query_class = LinkPrediction.subject, LinkPrediction.query_class

    def __init__(self, config: TrainerConfig, lane: LaneReader, options: Any) -> None:
        self._links = LinkPrediction(config, lane, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._links, name)


@pytest.mark.parametrize("task", [LinkPrediction, Composed], ids=lambda task: task.name)
def test_the_newest_snapshot_stays_though_it_alone_is_beyond_the_budget(
    task: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TASKS.all()
    monkeypatch.setitem(TASKS.registered, task.name, task)
    events = strangers(4)
    make_lane(tmp_path / "store", events=events)
    budget = {"nodes": 64, "events": 10}
    trainer = run(config_for(tmp_path, **{**EVENT_MODEL, "task": task.name, "budget": budget}))
    times = trainer.session.strategy.event_times
    assert len(times) == 40
    assert times.min() >= 3 * SECOND
    newest = events.slice(3 * 40)
    pairs = set(zip(newest["src"].to_pylist(), newest["dst"].to_pylist(), strict=True))
    assert trainer.session.task.history.pairs.size == len(pairs)


@pytest.mark.parametrize("model", ["tgn-history", "tgn", "dyrep"])
def test_a_node_that_comes_back_is_scored_as_a_new_one(model: str, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=strangers(6))
    trainer = run(config_for(tmp_path, **{**EVENT_MODEL, "model": model, "budget": {"nodes": 60}}))
    assert len(trainer.session.names) < 120
    strategy, size = trainer.session.strategy, len(trainer.session.names)
    returned = trainer.session.names.numbers(np.array([0]))  # of the first snapshot, long forgotten
    assert returned.tolist() == [size]
    now = 6 * SECOND
    partner = np.full(2, size - 1)  # somebody known

    def logits(first: int, second: int) -> np.ndarray:
        src = np.array([first, second])
        encounters = np.full((2, len(Encounter)), np.inf, np.float32)
        encounters[:, Encounter.PAIR_COUNT :] = 0
        times = np.full(2, now)
        asked = Queries(np.arange(2), src, partner, encounters, times, times)
        return strategy.answer(trainer.session.model, [asked])[0]

    if model != "tgn-history":  # whose walks know a node by its own random signature
        one, other = logits(size, size + 1)
        assert one == other
    vectors = strategy.embeddings(np.array([size, size + 1, size - 1])).numpy()
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert (vectors[0] != vectors[2]).any()
    if model == "tgn-history":
        feed = strategy.memories.feed
        ever = trainer.lane.manifests[-1].num_nodes
        assert feed.born(returned)[0] == ever  # a signature that nobody had, in whose walks nobody is
        assert feed.born(np.arange(size)).max() == ever - 1


BUDGET = {"nodes": 150, "events": 150}
CROWD = {"nodes": 300, "snapshots": 7, "a_snapshot": 50, "features": False}


def test_an_interrupted_run_that_forgets_gives_the_numbers_of_an_uninterrupted_one(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(**CROWD))
    kind = {**EVENT_MODEL, "budget": BUDGET, "checkpoint_every": 2}
    straight, broken = (config_for(tmp_path, checkpoint=str(tmp_path / name), **kind) for name in "ab")
    run(straight)
    run(broken, snapshots=5)  # the newest checkpoint is of the fourth
    run(broken)
    ours, theirs = lines(straight), lines(broken)
    assert sum(line["evicted"] for line in ours[:4]) > 0 < sum(line["evicted"] for line in ours[5:])
    assert [{**line, "lag": 0} for line in theirs] == [{**line, "lag": 0} for line in ours]


def test_pac_on_one_rank_forgets_what_sequential_forgets(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(**CROWD), algorithm="sep", parts=2)
    found = []
    for strategy in ("sequential", "pac"):
        config = config_for(
            tmp_path,
            **{**EVENT_MODEL, "strategy": strategy, "budget": BUDGET},
            lane="sep",
            checkpoint=str(tmp_path / strategy),
        )
        run(config)
        found.append(lines(config))
    assert sum(line["evicted"] for line in found[0]) > 0
    assert found[0] == found[1]


def test_a_budget_for_a_snapshot_model_is_refused(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    with pytest.raises(
        Failure, match="key budget bounds what event models remember, but sage-linear is a snapshot"
    ):
        run(config_for(tmp_path, budget={"nodes": 5}))
