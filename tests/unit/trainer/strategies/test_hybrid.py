"""``hybrid``: exact batches, averages that leave ranks equal, bit-equal runs and resumes, and what it refuses."""

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_equality import begun
from thread_ranks import FakeLink, side_by_side
from trainer_sessions import examples_of
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow
from freshet_graph.trainer.strategies.dynahb import hybrid
from freshet_graph.trainer.strategies.dynahb.batches import HybridBatch, Recipe
from freshet_graph.trainer.strategies.interface import STRATEGIES, StepReport
from freshet_graph.trainer.strategies.snapshots.past import Past
from freshet_graph.trainer.strategies.snapshots.whole import WholeLayout

WINDOW, HORIZON, RATE = 3, 6, 0.01
SIZES = {"snapshots": [0.4, 1.0], "vertices": [0.3, 1.0]}
WHOLE_BATCH = {"snapshots": [1.0], "vertices": [1.0], "newest_share": 1.0}
EXACT = ["tgcn", "cdgcn", "wdgcn", "gatlstm", "evolvegcn-o", "tmgcn", "sage-linear", "dysat", "dcrnn"]


@pytest.fixture(scope="module")
def lane() -> Iterator[LaneReader]:
    with tempfile.TemporaryDirectory() as folder:
        events = meetings(nodes=40, a_snapshot=14, snapshots=8)
        yield make_lane(Path(folder), events=events, algorithm="load-aware")


def session_of(
    lane: LaneReader,
    ranks: Ranks,
    model: str = "wdgcn",
    *,
    dtype: torch.dtype = torch.float32,
    strategy: str = "hybrid",
    task: str = "link-prediction",
    **params: Any,
) -> Session:
    no_neighbour = {"model_params": {"terms": 1}} if model == "dcrnn" else {}
    return begun(
        lane, strategy, model, ranks, dtype, RATE, window=WINDOW, horizon=HORIZON, strategy_params=params,
        task=task, **no_neighbour,
    )  # fmt: skip


def passes(session: Session, book: ExampleWindow, first: int = 0, end: int | None = None) -> list[StepReport]:
    """The reports of a pass over each snapshot."""
    reports = []
    for manifest in list(session.lane.manifests)[first:end]:
        examples = examples_of(session, manifest.sequence)
        book.open(examples)
        reports.append(session.strategy.learn(book.with_newest(examples), 0))
    return reports


def book_of(session: Session) -> ExampleWindow:
    return ExampleWindow(session.task, session.strategy.needs.example_sets)


def weights(session: Session) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in session.model.named_parameters()}


def require_same_bits(found: dict[str, torch.Tensor], one: dict[str, torch.Tensor]) -> None:
    assert found.keys() == one.keys()
    for name, value in one.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("model", EXACT)
def test_embeddings_of_a_batch_are_those_of_the_whole_graph(model: str, lane: LaneReader) -> None:
    whole = session_of(lane, Ranks(), model, dtype=torch.float64, strategy="whole")
    for manifest in lane.manifests[:6]:
        whole.advance(manifest)
    nodes, weights = np.array([0, 3, 17, 18, 39]), whole.model.state_dict()
    horizon = whole.strategy.timeline.before_newest(nodes)
    expected = unroll(whole.model.stages, WholeLayout(horizon, whole.model))[0][:, horizon.places(nodes)]
    assert len(horizon.taus) == 5

    def of_rank(ranks: Ranks) -> None:
        session = session_of(lane, ranks, model, dtype=torch.float64)
        session.model.load_state_dict(weights)
        for manifest in lane.manifests[:6]:
            session.advance(manifest)
        maker = session.strategy.maker
        past = maker.past.part(0, 5)
        maker.reach.cover(session.view, past, [nodes] * len(past.snapshots))
        layout = maker.layout(session.model, past, nodes)
        tolerance = {"rtol": 0, "atol": 1e-6 * expected.abs().max().item()}
        found = unroll(session.model.stages, layout)[0]
        torch.testing.assert_close(found, expected, **tolerance)
        last = unroll(session.model.stages, layout, last=True)[0]
        torch.testing.assert_close(last[0], expected[-1], **tolerance)

    of_rank(Ranks())
    side_by_side(2, of_rank)


@pytest.mark.parametrize("model", ["tgcn", "evolvegcn-o"])
@pytest.mark.parametrize("task", ["link-prediction", "node-regression"])
@pytest.mark.parametrize("halo_mib", [0, 1e-6], ids=["all rows stay", "few rows stay"])
def test_full_batches_averaged_after_every_step_are_one_ranks_under_plain_descent(
    model: str, task: str, halo_mib: float, lane: LaneReader
) -> None:
    def work(ranks: Ranks) -> dict[str, torch.Tensor]:
        session = session_of(
            lane,
            ranks,
            model,
            dtype=torch.float64,
            task=task,
            every_steps=1,
            steps=3,
            halo_mib=halo_mib,
            **WHOLE_BATCH,
        )
        learner = session.strategy.learner
        learner._limit = None
        learner.rate.optimiser = torch.optim.SGD(session.model.parameters(), lr=RATE, fused=True)
        passes(session, book_of(session), end=5)
        return weights(session)

    one = work(Ranks())
    for found in side_by_side(2, work):
        for name, value in one.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10 * value.abs().max().item())


@pytest.mark.parametrize("average", ["every_steps", "every_s", "delayed"])
def test_weights_are_equal_on_all_ranks_after_every_snapshot(average: str, lane: LaneReader) -> None:
    def work(ranks: Ranks) -> list[Any]:
        session = session_of(lane, ranks, average=average, every_s=0.01, steps=7, every_steps=3, **SIZES)
        book, found = book_of(session), []
        for sequence in range(6):
            passes(session, book, sequence, sequence + 1)
            found.append((weights(session), session.strategy.learner.state()))
        return found

    one, other = side_by_side(2, work)
    for (ours, state), (theirs, their_state) in zip(one, other, strict=True):
        require_same_bits(ours, theirs)
        moments = [
            [
                each[name]
                for each in found["rate"]["optimiser"]["state"].values()
                for name in ("exp_avg", "step")
            ]
            for found in (state, their_state)
        ]
        assert all(torch.equal(*pair) for pair in zip(*moments, strict=True))
    assert any(not torch.equal(value, one[-1][0][name]) for name, value in one[1][0].items()), "they moved"


@pytest.mark.parametrize(
    ("average", "snapshot_mib"), [("every_steps", 0.0), ("every_steps", 1.0), ("delayed", 0.0)]
)
@pytest.mark.parametrize("size", [1, 2])
def test_without_the_clock_a_run_is_bit_equal_and_so_is_its_continuation(
    size: int, average: str, snapshot_mib: float, lane: LaneReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With learned sizes, too: a resumed run makes the choices of one that was never interrupted."""
    monkeypatch.setattr(hybrid, "clock", lambda: 0.0)
    params = {
        "average": average, "snapshot_mib": snapshot_mib, "adjuster": "dqn", "every_steps": 2, "steps": 4,
        "threads": 2, **SIZES,
    }  # fmt: skip

    def on_ranks(work: Any) -> list[Any]:
        return [work(Ranks())] if size == 1 else side_by_side(size, work)

    def straight(ranks: Ranks) -> dict[str, torch.Tensor]:
        session = session_of(lane, ranks, **params)
        passes(session, book_of(session))
        return weights(session)

    def begin(ranks: Ranks) -> Any:
        session = session_of(lane, ranks, reservoir_mib=0.001, **params)
        book = book_of(session)
        passes(session, book, end=5)
        return session.state(), book.state()

    def resume(ranks: Ranks, state: Any, example_sets: Any) -> dict[str, torch.Tensor]:
        session = session_of(lane, ranks, **params)
        session.restore(copy.deepcopy(state))
        book = book_of(session)
        book.restore(copy.deepcopy(example_sets))
        passes(session, book, first=5)
        return weights(session)

    once, begins = on_ranks(straight), on_ranks(begin)
    state = begins[0][0]
    example_sets = begins[0][1]  # a checkpoint has those of rank 0
    resumed = on_ranks(lambda ranks: resume(ranks, state, example_sets))
    for found in resumed:
        require_same_bits(found, once[0])


def test_a_batch_asks_about_the_snapshot_after_each_of_its_snapshots(lane: LaneReader) -> None:
    session = session_of(lane, Ranks(), **SIZES)
    maker, asked_after = session.strategy.maker, list[tuple[int, int]]()
    batch = maker.batch

    def made(past: Past, asked: list[Any]) -> Any:
        for place, questions, _ in asked if past.snapshots else []:
            asked_after.extend((tau, past.snapshots[place].tau) for tau in questions.time_us // SECOND)
        return batch(past, asked)

    maker.batch = made
    passes(session, book_of(session))
    session.close()
    assert {after for _, after in asked_after} == set(range(7))
    assert all(tau == after + 1 for tau, after in asked_after)


@pytest.mark.parametrize("fits", [True, False])
def test_a_draw_beside_the_reservoir_learns_all_of_its_snapshots_if_they_fit(
    fits: bool, lane: LaneReader
) -> None:
    """DynaHB, algorithm 3: lines 8 to 10."""
    sizes = {"snapshots": [0.4], "vertices": [0.3], "steps": 24}
    session = session_of(lane, Ranks(), snapshot_mib=1.0 if fits else 1e-4, **sizes)
    maker, generator, shares = session.strategy.maker, session.strategy.generator, set[tuple[bool, bool]]()
    take = generator.take

    def taken(recipe: Recipe, *, known: bool) -> HybridBatch:
        batch = take(recipe, known=known)
        first = maker.taus.index(recipe.first)
        about = [maker._queries[place].nodes for place in range(first, first + recipe.length)]
        shares.add((known, batch.targets == len(np.unique(np.concatenate(about)))))
        return batch

    generator.take = taken
    passes(session, book_of(session))
    session.close()
    assert shares == {(True, False), (False, fits)}


def test_a_pass_ends_with_its_seconds_and_tells_what_it_did(lane: LaneReader) -> None:
    session = session_of(lane, Ranks(), steps=0, seconds_per_snapshot=0.2, every_steps=1, **SIZES)
    *_, report = passes(session, book_of(session), end=3)
    told = report.figures
    assert report.steps > 0
    assert report.events > 0
    assert sum(told["reservoir_reads"].values()) == report.steps
    assert sum(told["reservoir_batches"].values()) > 0
    assert told["averages"] > 0
    assert 0 < told["batch_size"]["snapshots"] <= HORIZON


def test_a_delayed_average_travels_while_steps_are_taken(lane: LaneReader) -> None:
    def waited(average: str) -> float:
        def work(ranks: Any) -> float:
            session = session_of(lane, ranks, average=average, steps=64, every_steps=4, **WHOLE_BATCH)
            learner, step = session.strategy.learner, session.strategy.learner.step

            def stepped(*loss: Any) -> None:
                ranks.compute(0.02)
                step(*loss)

            learner.step = stepped
            passes(session, book_of(session), end=2)
            return ranks.traffic.seconds["averages"]

        return max(side_by_side(2, work, FakeLink(latency_s=0.05, bytes_per_s=1e9)))

    assert waited("delayed") < 0.2 * waited("every_steps")


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        ("dcrnn", {}, "stage DiffusionCell of dcrnn convolves states and so looks further with every snapshot"),
        ("evolvegcn-h", {}, "the weights of evolvegcn-h evolve by the best of all of them. Choose model evolvegcn-o"),
        ("tmgcn", {"normalise": "before"}, "tmgcn looks along means of several snapshots' operators. Set normalise: after"),
    ],
)  # fmt: skip
def test_models_that_look_farther_than_their_hops_are_refused(
    model: str, params: dict[str, Any], message: str
) -> None:
    made = create_model(model, ModelShape(0, 3), params)
    refused = STRATEGIES.find("hybrid").refuses(made, None, 2)
    assert message in refused


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"snapshots": []}, "snapshots: list should have at least 1 item"),
        ({"vertices": [0.1, 1.5]}, "vertices\\[1\\]: must be at most 1, found 1.5"),
        ({"adjuster": "bandit"}, "adjuster: must be 'fixed' or 'dqn', found 'bandit'"),
        ({"average": "never"}, "average: must be 'every_steps', 'every_s' or 'delayed', found 'never'"),
        ({"every_steps": 0}, "every_steps: must be at least 1, found 0"),
        ({"steps": -1}, "steps: must be at least 0, found -1"),
        ({"every_s": 0.0}, "every_s: must be above 0, found 0.0"),
        ({"newest_share": 1.5}, "newest_share: must be at most 1, found 1.5"),
        ({"steps": 0}, "steps is 0 and seconds_per_snapshot is 0, so a pass would not end. Set one of them"),
    ],
)
def test_options_that_cannot_be_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(Failure, match=f"strategy_params of hybrid: {message}"):
        STRATEGIES.options("hybrid", params)
