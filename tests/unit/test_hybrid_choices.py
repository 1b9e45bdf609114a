"""What ``hybrid`` judges sizes by, who chooses them, and what a model loses whose states look farther than its hops."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_equality import begun
from thread_ranks import side_by_side
from trainer_sessions import lesson_of
from trainer_streams import make_lane, meetings

from stream.store.lane.reader import LaneReader
from trainer.models.convolutions import LaplacianConvolution
from trainer.models.unroll import unroll
from trainer.ranks import Ranks
from trainer.session.lesson_book import LessonBook
from trainer.session.session import Session
from trainer.strategies.snapshots.batch_maker import host_graph
from trainer.strategies.snapshots.closed_batch import HybridBatch, close
from trainer.strategies.snapshots.closed_layout import ClosedLayout
from trainer.strategies.snapshots.whole_layout import WholeLayout

WINDOW, HORIZON = 3, 6
SIZES = {"snapshots": [0.4, 1.0], "vertices": [0.3, 1.0]}


@pytest.fixture(scope="module")
def lane() -> Iterator[LaneReader]:
    with tempfile.TemporaryDirectory() as folder:
        events = meetings(nodes=120, a_snapshot=50, snapshots=8, features=False)
        yield make_lane(Path(folder), events=events, algorithm="load-aware")


def session_of(lane: LaneReader, ranks: Ranks, model: str = "tgcn", **more: Any) -> Session:
    settings: dict[str, Any] = {"strategy": "hybrid", **more}
    strategy = settings.pop("strategy")
    return begun(
        lane, strategy, model, ranks, torch.float64, 0.01, window=WINDOW, horizon=HORIZON, **settings
    )


def pass_over(session: Session, book: LessonBook, sequence: int) -> Any:
    lesson = lesson_of(session, sequence)
    book.open(lesson)
    session.strategy.learn(book.with_newest(lesson), 0)
    return lesson


@pytest.mark.parametrize("adjuster", ["bandit", "dqn"])
def test_sizes_are_judged_by_items_of_the_newest_lesson_that_are_not_learned_meanwhile(
    adjuster: str, lane: LaneReader
) -> None:
    params = {"adjuster": adjuster, "steps": 12, "newest_share": 0.7, **SIZES}
    session = session_of(lane, Ranks(), strategy_params=params)
    book = LessonBook(session.task, session.strategy.needs.lessons)
    strategy, judged, learned = session.strategy, list[HybridBatch](), list[HybridBatch]()
    loss = strategy.loss

    def seen(batch: HybridBatch) -> Any:
        (learned if session.model.training else judged).append(batch)
        return loss(batch)

    strategy.loss = seen
    for sequence in range(6):
        judged.clear()
        learned.clear()
        lesson = pass_over(session, book, sequence)
    held = strategy.held_out(lesson, 0)
    assert 0 < len(held) < len(lesson) / 5
    asked, truth = lesson.part(held)
    assert len(judged) > 2
    for batch in judged:
        ((place, questions, answers),) = batch.asked
        assert place == WINDOW - 1 == batch.snapshots - 1
        np.testing.assert_array_equal(questions.ends[0], asked.ends[0])
        np.testing.assert_array_equal(answers, truth)
    newest = np.concatenate([batch.items for batch in learned])
    assert len(newest)
    assert not np.isin(newest, held).any()


def test_an_adjuster_is_told_falls_and_seconds_of_a_step(lane: LaneReader) -> None:
    session = session_of(lane, Ranks(), strategy_params={"adjuster": "bandit", "steps": 12, "every_steps": 4})
    strategy, told = session.strategy, list[Any]()
    strategy.exam = lambda newest, held: iter([1.0, 0.6, 0.7, 0.5]).__next__
    strategy.adjuster.told = told.append
    book = LessonBook(session.task, strategy.needs.lessons)
    for sequence in range(3):
        told.clear()
        began = time.perf_counter()
        pass_over(session, book, sequence)
    assert [each.fall for each in told] == pytest.approx([0.4 / 4, -0.1 / 4])
    assert 0 < sum(4 * each.seconds for each in told) < time.perf_counter() - began


@pytest.mark.parametrize("model", ["tgcn", "sage-linear"])
def test_nodes_that_come_within_a_batch_have_no_row_before(model: str, lane: LaneReader) -> None:
    ours, whole = (session_of(lane, Ranks(), model, strategy=strategy) for strategy in ("hybrid", "whole"))
    whole.model.load_state_dict(ours.model.state_dict())
    for session in (ours, whole):
        for manifest in session.lane.manifests[:6]:
            session.advance(manifest)
    come = [manifest.num_nodes for manifest in whole.lane.manifests[:6]]
    assert come[-1] > come[0] + 10
    nodes = np.arange(come[-1])
    horizon = whole.strategy.timeline.before_newest(nodes)
    expected = unroll(whole.model.stages, WholeLayout(horizon, whole.model))[0][:, horizon.places(nodes)]
    maker = ours.strategy.maker
    closure = maker.close(horizon.taus, nodes)
    inputs = maker.inputs(ours.model.encode, horizon.taus, closure)
    found = unroll(ours.model.stages, ClosedLayout(closure, inputs, torch.device("cpu")))[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_all_ranks_learn_the_sizes_that_the_first_one_chooses(lane: LaneReader) -> None:
    def work(ranks: Ranks) -> list[int]:
        params = {"adjuster": "bandit", "steps": 16, "every_steps": 2, **SIZES}
        session = session_of(lane, ranks, strategy_params=params)
        strategy, sizes = session.strategy, list[int]()
        strategy.adjuster.choose = iter([rank_s_choice(ranks.rank, at) for at in range(1000)]).__next__
        loss = strategy.loss

        def seen(batch: HybridBatch) -> Any:
            if session.model.training:
                sizes.append(batch.size)
            return loss(batch)

        strategy.loss = seen
        book = LessonBook(session.task, strategy.needs.lessons)
        for sequence in range(4):
            pass_over(session, book, sequence)
        return sizes

    one, other = side_by_side(2, work)
    assert one == other
    assert len(set(one)) > 1


def rank_s_choice(rank: int, at: int) -> int:
    return (at + rank) % 4


def test_the_error_of_states_that_look_farther_falls_with_hops(lane: LaneReader) -> None:
    """Why ``dcrnn`` is refused: two hops are not enough for two layers, and with enough of them nothing is wrong."""
    session = session_of(lane, Ranks(), "dcrnn", strategy="whole")
    for manifest in session.lane.manifests[:6]:
        session.advance(manifest)
    nodes = np.array([0, 21])
    horizon = session.strategy.timeline.before_newest(nodes)
    graphs = [host_graph(session.view, tau) for tau in horizon.taus]
    layout = WholeLayout(horizon, session.model)
    there, inputs, known, errors = layout.there, layout.rows, nodes, list[float]()
    true = unroll(session.model.stages, layout)[0][-1][horizon.places(nodes)]
    for _ in range(12):
        near = torch.zeros(len(horizon.nodes), dtype=torch.bool)
        near[horizon.places(known)] = True
        layout.there, layout.rows = there & near, inputs * near.unsqueeze(1)
        found = unroll(session.model.stages, layout)[0][-1][horizon.places(nodes)]
        errors.append(float((found - true).detach().norm() / true.detach().norm()))
        known = np.unique(close(graphs, [LaplacianConvolution(1, 1)], known, session.view.num_nodes).lowest)
    assert errors[0] > errors[1] > errors[2] > 1e-9
    assert errors[-1] < 1e-12
