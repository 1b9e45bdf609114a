"""The cost model behind ``strategy: auto``: what raises which cost, what ranks really send, and how often it changes."""

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thread_ranks import side_by_side
from trainer_sessions import examples_of, learn, session_on
from trainer_streams import make_lane, meetings

from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.measurement import load_of, setup_of
from freshet_graph.trainer.strategies.cost_model import (
    IN_A_ROW,
    LEAST_BETWEEN,
    Chooser,
    Cost,
    Load,
    Passes,
    Setup,
    cost,
    reason_for,
    volume,
)

SETUP = Setup(
    ranks=4, alpha_s=1e-4, beta_s=1e-8, free_bytes=1e12, width=64, weights=20_000, stages=3, fanouts=(5, 10),
    turns=1, window=4, batch=256,
)  # fmt: skip
LOAD = Load(
    snapshots=4,
    nodes=30_000,
    active=20_000,
    edges=60_000,
    events=10_000,
    foreign_parts=0.5,
    largest_share=0.25,
)
RATE = 1e-7


def passes_at(rate: float, setup: Setup = SETUP, load: Load = LOAD, noise: Any = (1.0, 1.0)) -> Passes:
    """Measured passes of both families over a load."""
    passes = Passes()
    for name, factor in zip(("snapshot", "vertex"), noise, strict=True):
        work = volume(name, setup, load).work
        passes.add(name, rate * factor * work, work)
    return passes


PASSES = passes_at(RATE)


def seconds(strategy: str, setup: Setup = SETUP, load: Load = LOAD) -> float:
    return cost(strategy, setup, load, PASSES).seconds


@pytest.mark.parametrize("strategy", ["snapshot", "vertex"])
@pytest.mark.parametrize("price", ["alpha_s", "beta_s"])
def test_a_slower_link_costs_every_strategy_of_several_ranks_more_and_one_rank_nothing(
    strategy: str, price: str
) -> None:
    slower = {price: 10 * getattr(SETUP, price)}
    assert seconds(strategy, replace(SETUP, **slower)) > seconds(strategy)
    alone = replace(SETUP, ranks=1)
    assert seconds(strategy, replace(alone, **slower)) == seconds(strategy, alone)


def test_foreign_neighbours_cost_vertex_alone() -> None:
    dearer = replace(LOAD, foreign_parts=2.0)
    assert seconds("vertex", load=dearer) > seconds("vertex")
    assert seconds("snapshot", load=dearer) == seconds("snapshot")


@pytest.mark.parametrize("strategy", ["whole", "snapshot", "vertex"])
@pytest.mark.parametrize("sizes", [("active", "edges"), ("edges",), ("events",)])
def test_a_larger_snapshot_costs_more(strategy: str, sizes: tuple[str, ...]) -> None:
    larger = replace(LOAD, **{size: 2 * getattr(LOAD, size) for size in sizes})
    assert seconds(strategy, load=larger) > seconds(strategy)


def test_more_ranks_compute_less_each() -> None:
    for strategy in ("snapshot", "vertex"):
        work = [
            volume(strategy, replace(SETUP, ranks=ranks), replace(LOAD, largest_share=1 / ranks)).work
            for ranks in (1, 2, 4)
        ]
        assert all(more > fewer for more, fewer in pairwise(work))


def test_on_one_rank_snapshot_costs_what_whole_costs_and_is_taken_if_whole_does_not_fit() -> None:
    alone = replace(SETUP, ranks=1)
    assert volume("snapshot", alone, LOAD).work == volume("whole", alone, LOAD).work
    roomy, narrow = Chooser(["whole", "snapshot"]), Chooser(["whole", "snapshot"])
    roomy.see({name: cost(name, alone, LOAD, PASSES) for name in ("whole", "snapshot")})
    many = replace(LOAD, active=3e6)  # beyond device_budget_mib
    tight = replace(alone, free_bytes=2e9)
    costs = {name: cost(name, tight, many, PASSES) for name in ("whole", "snapshot")}
    narrow.see(costs)
    assert (roomy.current, narrow.current) == ("whole", "snapshot")
    assert str(costs["whole"]) == "does not fit into memory"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sage-linear", "dysat"])
@pytest.mark.parametrize("strategy", ["snapshot", "vertex"])
@pytest.mark.parametrize("size", [2, 16])  # fewer and more than snapshots of the horizon
def test_ranks_begin_as_many_collectives_and_send_as_many_bytes_as_predicted(
    size: int, strategy: str, model: str, tmp_path: Path
) -> None:
    make_lane(tmp_path, events=meetings(snapshots=7, a_snapshot=400, nodes=300), parts=16)

    def work(ranks: Ranks) -> tuple[Any, ...]:
        session = session_on(LaneReader(tmp_path, "hash"), strategy, model, ranks, window=4)
        for sequence in range(6):
            examples = examples_of(session, sequence)
        learn(session, examples)  # measures blocks
        before = ranks.traffic.copy()
        learn(session, examples, 1)
        traffic = ranks.traffic.since(before)
        predicted = volume(strategy, setup_of(session), load_of(session, session.lane.manifests[5]))
        return sum(traffic.begun.values()), sum(traffic.sent_bytes.values()), predicted

    begun, sent, (predicted, *_) = zip(*side_by_side(size, work, turn=threading.Lock()), strict=True)
    assert predicted.collectives == pytest.approx(max(begun), rel=0.25)
    assert predicted.sent_bytes == pytest.approx(max(sent), rel=0.25)


def followed(chooser: Chooser, loads: Any, noise: Any, setup: Setup = SETUP) -> list[int]:
    """Snapshots at which the strategy changed; passes are measured over the first load."""
    changes = []
    for number, (load, factors) in enumerate(zip(loads, noise, strict=True)):
        passes = passes_at(RATE, setup, loads[0], factors)
        if chooser.see({name: cost(name, setup, load, passes) for name in ("snapshot", "vertex")}):
            changes.append(number)
    return changes


def test_a_stream_whose_lambda_crosses_over_half_way_changes_once() -> None:
    setup = replace(SETUP, batch=1000, beta_s=1e-9)
    few, many = (replace(LOAD, events=500, foreign_parts=each) for each in (0.05, 3.0))
    noise = np.array([1.0, 2.5]) * np.random.default_rng(0).lognormal(0, 0.03, (120, 2))
    for load, least, most in ((few, "vertex", "snapshot"), (many, "snapshot", "vertex")):
        costs = {
            name: cost(name, setup, load, passes_at(RATE, setup, few, (1.0, 2.5))) for name in (least, most)
        }
        assert costs[least].seconds < 0.8 * costs[most].seconds
    chooser = Chooser(["vertex", "snapshot"])
    assert followed(chooser, [few] * 60 + [many] * 60, noise, setup) == [60 + IN_A_ROW - 1]
    assert chooser.current == "snapshot"


def test_the_reason_is_a_sentence_with_the_numbers_that_decided() -> None:
    costs = {"whole": Cost(2.0, 0.0), "vertex": Cost(1.5, 0.25)}
    sizes = "λ is 0.5, and 67% of the nodes have an edge in a snapshot"
    compared = "whole: 2 s, 2 computing and 0 on the link; vertex: 1.75 s, 1.5 computing and 0.25 on the link"
    least = reason_for("vertex", costs, LOAD)
    assert least == f"vertex is predicted to need least for a pass: {compared}. {sizes}"
    stays = reason_for("whole", costs | {"vertex": Cost(1.9, 0.0)}, LOAD)
    assert stays.startswith(
        "whole stays, because vertex is predicted to need more than 90% of its pass: whole: 2 s"
    )
    alone = reason_for("pac", {"pac": Cost(2.0, 0.0)}, LOAD)
    assert alone.startswith("pac alone can train the model on these ranks. A pass is predicted to take 2 s")


@pytest.mark.parametrize("seed", range(5))
def test_a_stationary_stream_changes_at_most_once_in_twenty_snapshots_however_noisy(seed: int) -> None:
    noise = np.random.default_rng(seed).lognormal(0, 1.0, (400, 2))
    changes = followed(Chooser(["snapshot", "vertex"]), [LOAD] * 400, noise)
    assert all(later - earlier >= LEAST_BETWEEN for earlier, later in pairwise(changes))


def test_a_small_gain_changes_nothing_and_one_outlier_neither() -> None:
    chooser = Chooser(["snapshot", "vertex"])
    even, slightly, much = (Cost(seconds, 0.0) for seconds in (1.0, 0.95, 0.01))
    for number in range(60):
        assert not chooser.see({"snapshot": even, "vertex": much if number == 30 else slightly})


def test_a_chooser_and_measured_passes_continue_from_their_state() -> None:
    noise = np.random.default_rng(1).lognormal(0, 1.0, (200, 2))
    straight, first, second = (Chooser(["snapshot", "vertex"]) for _ in range(3))
    loads = [LOAD] * 200
    before = followed(first, loads[:90], noise[:90])
    second.restore(first.state())
    after = [90 + number for number in followed(second, loads[90:], noise[90:])]
    assert followed(straight, loads, noise) == before + after
    passes, others = Passes(), Passes()
    for compute_s in (1.0, 9.0, 2.0):
        passes.add("whole", compute_s, 2.0)
    others.restore(passes.state())
    assert others.seconds("snapshot", 2.0) == passes.seconds("whole", 2.0) == 2.0
    assert others.seconds("whole", 6.0) == 4.0
    assert not others.knows("vertex")
