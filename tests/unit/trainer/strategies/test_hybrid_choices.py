"""What sizes of ``hybrid`` are learned from, who chooses them, and what a model loses whose states look farther than its hops."""

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_equality import begun
from thread_ranks import side_by_side
from trainer_sessions import examples_of
from trainer_streams import make_lane, meetings

from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow
from freshet_graph.trainer.strategies.dynahb import hybrid
from freshet_graph.trainer.strategies.dynahb.adjusters import BATCH, DECAY, Outcome, cleaned_reward
from freshet_graph.trainer.strategies.dynahb.batches import HybridBatch
from freshet_graph.trainer.strategies.snapshots.whole import WholeLayout

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


def pass_over(session: Session, book: ExampleWindow, sequence: int) -> Any:
    examples = examples_of(session, sequence)
    book.open(examples)
    session.strategy.learn(book.with_newest(examples), 0)
    return examples


def spied(session: Session) -> list[Outcome]:
    """Every batch that is learned from now on, as an adjuster should observe it on a clock that stands still."""
    strategy, seen = session.strategy, list[Outcome]()
    loss = strategy.loss

    def loss_of(batch: HybridBatch) -> torch.Tensor:
        found = loss(batch)
        seen.append(Outcome(batch.size, float(found.detach()) / batch.queries, 0.0))
        return found

    strategy.loss = loss_of
    return seen


def test_the_network_learns_every_step_of_every_pass(
    lane: LaneReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transitions go over the end of a pass, and through a checkpoint; only the first two steps of all have none."""
    monkeypatch.setattr(hybrid, "clock", lambda: 0.0)
    params = {"adjuster": "dqn", "steps": 3, "every_steps": 2, **SIZES}
    session, resumed = (session_of(lane, Ranks(), strategy_params=params) for _ in range(2))
    book = ExampleWindow(session.task, session.strategy.needs.example_sets)
    pass_over(session, book, 0)  # one step over all of the first snapshot, for which no size is chosen
    steps = spied(session)
    for sequence in range(1, 5):
        pass_over(session, book, sequence)
    resumed.restore(copy.deepcopy(session.state()))
    for manifest in resumed.lane.manifests[:5]:
        resumed.advance(manifest)
    more = spied(resumed)
    pass_over(resumed, book, 5)
    assert len(more) == 3
    assert more[0].size == session.strategy.state()["action"], "the last choice before the checkpoint"
    steps += more
    network = resumed.strategy.adjuster.network
    losses, sizes = [step.loss for step in steps], [step.size for step in steps]
    falls = -np.diff(losses)
    shares = [(s, v) for s in SIZES["snapshots"] for v in SIZES["vertices"]]
    expected = []
    for at in range(2, 15):
        of_steps = (shares[sizes[at - 1]], shares[sizes[at]])
        reward = cleaned_reward((0.0, 0.0), (falls[at - 2], falls[at - 1]), of_steps)
        expected.append([falls[at - 2], sizes[at], reward, falls[at - 1]])
    np.testing.assert_allclose(network.replay, expected)
    assert network.steps == 13 - (BATCH - 1), "it learns from the fifth transition"
    assert network.epsilon == pytest.approx(DECAY**16), "a choice before the first step, and one after each"


def test_a_size_is_chosen_after_every_step_for_the_next_batch_that_is_planned(lane: LaneReader) -> None:
    session = session_of(lane, Ranks(), strategy_params={"adjuster": "dqn", "steps": 5, **SIZES})
    book = ExampleWindow(session.task, session.strategy.needs.example_sets)
    pass_over(session, book, 0)
    steps, choices = spied(session), [at % 4 for at in range(10)]
    session.strategy.adjuster.choose = iter(choices).__next__
    for sequence in (1, 2):
        pass_over(session, book, sequence)
    first, second = [step.size for step in steps[:5]], [step.size for step in steps[5:]]
    # the batch that is made during a step was planned before it; the last choice of a pass begins the next one
    assert first[2:] == choices[:3]
    assert second == [choices[4], choices[4], *choices[5:8]]


def test_an_adjuster_observes_the_seconds_of_a_step(
    lane: LaneReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(hybrid, "clock", lambda: now_s)
    session = session_of(lane, Ranks(), strategy_params={"adjuster": "dqn", "steps": 4, **SIZES})
    book, observed = ExampleWindow(session.task, session.strategy.needs.example_sets), list[Outcome]()
    step = session.strategy.learner.step

    def lasting(*loss: Any) -> None:
        nonlocal now_s
        step(*loss)
        now_s += 0.5

    session.strategy.learner.step = lasting
    session.strategy.adjuster.observe = observed.append
    for sequence in (0, 1):
        pass_over(session, book, sequence)
    assert [outcome.seconds for outcome in observed] == [0.5] * 4


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
    layout = maker.layout(ours.model, maker.past.part(0, len(horizon.taus)), nodes)
    found = unroll(ours.model.stages, layout)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize(
    "more",
    [{}, {"average": "delayed"}, {"average": "every_s", "every_s": 0.01}, {"seconds_per_snapshot": 0.05}],
)
def test_all_ranks_learn_the_sizes_that_the_first_one_chooses(lane: LaneReader, more: dict[str, Any]) -> None:
    def work(ranks: Ranks) -> list[int]:
        params = {"adjuster": "dqn", "steps": 16, "every_steps": 3, **SIZES, **more}
        session = session_of(lane, ranks, strategy_params=params)
        session.strategy.adjuster.choose = iter(
            [rank_s_choice(ranks.rank, at) for at in range(1000)]
        ).__next__
        steps = spied(session)
        book = ExampleWindow(session.task, session.strategy.needs.example_sets)
        for sequence in range(4):
            pass_over(session, book, sequence)
        return [step.size for step in steps]

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
    links = [session.view.csr(tau) for tau in horizon.taus]
    layout = WholeLayout(horizon, session.model)
    there, inputs, known, errors = layout.present, layout.rows, nodes, list[float]()
    true = unroll(session.model.stages, layout)[0][-1][horizon.places(nodes)]
    for _ in range(12):
        near = torch.zeros(len(horizon.nodes), dtype=torch.bool)
        near[horizon.places(known)] = True
        layout.present, layout.rows = there & near, inputs * near.unsqueeze(1)
        found = unroll(session.model.stages, layout)[0][-1][horizon.places(nodes)]
        errors.append(float((found - true).detach().norm() / true.detach().norm()))
        near_by = [
            graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
            for graph in links
            for node in known[known < graph.num_nodes]
        ]
        known = np.unique(np.concatenate([known, *near_by]))
    assert errors[0] > errors[1] > errors[2] > 1e-9
    assert errors[-1] < 1e-12
