"""Every model, strategy and task trains on a device as on the host, and there the host waits at few places only.

The device is pretended (``far_device``), with real numbers. Plug-ins that are installed are included.
"""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from far_device import FAR, FarTensor, FarThread, TwoDevicesError, far_device, waits_of
from rank_equality import DRAWING
from thread_ranks import side_by_side
from trainer_sessions import examples_of
from trainer_streams import make_lane
from triples import TOGETHER, Triple, config_for, each_model

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session

SNAPSHOTS = 3
STEPS = {"whole": 2, "snapshot": 2, "hybrid": 2}
"""Of a snapshot: a wait in each would be seen."""
LEARNING = {
    "learning/step.py:Learner.settled": 1,  # what became of all steps, at once
    "strategies/dygnex/group.py:GroupSteps.losses": 1,
    "strategies/dynahb/averaging.py:Averager.since_last": 1,
    "timeline/device.py:SortedEntries.set": 40,  # masks by truths: four for each way of each graph of the window
}
"""The places where the host waits while a snapshot is learned, and how often at most."""
CHOOSING = {"strategies/dynahb/hybrid.py:HybridPass._step": STEPS["hybrid"]}
"""More of them: the paper's adjuster wants each step's loss."""
SCORING = {
    "strategies/events/event_stream.py:on_host": 2,  # the scores, of the model and of its first weights
    "strategies/snapshots/windowed.py:WindowedStrategy.answer.<locals>.<listcomp>": 8,
    "tasks/edge_classification.py:first_ranks": 2,
}
"""The same, while it is predicted."""
SMALL = {"memory": 8, "time_width": 8}
TIED = [
    each for each in TOGETHER if each[2] == "link-prediction" and each[0] in ("sage-linear", "tgn-history")
]
"""One model of each kind, under every strategy."""


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> LaneReader:
    return make_lane(tmp_path_factory.mktemp("device"))


class Trained:
    """A rank that predicts and learns a few snapshots.

    Attributes:
        embeddings: Of the first nodes, before anything was learned and after each snapshot.
        losses: Of snapshots that were learned.
        learning: Waits while it learned, by place.
        scoring: Waits while it predicted.
        steps: That were taken.
    """

    def __init__(self, lane: LaneReader, together: Triple, ranks: Ranks, **keys: Any) -> None:
        if together[1] in STEPS:
            keys["strategy_params"] = {"steps": STEPS[together[1]], **keys.get("strategy_params", {})}
        with DRAWING:
            self.session = session = Session(config_for(together, **keys), lane, ranks)
        for module in session.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # devices draw other numbers
        self.embeddings: list[Any] = []
        self.losses: list[float] = []
        self.learning, self.scoring, self.steps = Counter[str](), Counter[str](), 0
        for sequence in range(SNAPSHOTS):
            examples = examples_of(session, sequence)
            self.scoring += waits_of(lambda examples=examples: self._judged(examples))[1]
            if sequence == 0:
                self.embeddings.append(self._embedded())
            report, waits = waits_of(lambda examples=examples: session.strategy.learn([examples], 0))
            self.embeddings.append(self._embedded())
            self.learning += waits
            self.steps += report.steps
            if report.loss is not None:
                self.losses.append(report.loss)
        session.close()

    def _judged(self, examples: Any) -> None:
        session = self.session
        session.task.evaluate(session.strategy, session.model, session.untrained, examples, session.ranks)

    def _embedded(self) -> Any:
        return self.session.strategy.embeddings(np.arange(8)).cpu().numpy()


def agree(ours: Trained, theirs: Trained) -> None:
    """Embeddings agree one by one before anything was learned, later in the mean, and so do losses.

    Kernels of the host round otherwise than torch's operations. Adam divides by the root of a gradient's square, so a gradient
    that is rounding alone moves its weight as far as any other.
    """
    np.testing.assert_allclose(ours.embeddings[0], theirs.embeddings[0], atol=1e-5)
    for one, other in zip(ours.embeddings, theirs.embeddings, strict=True):
        assert np.abs(one - other).mean() <= 1e-3
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-3)


def within(found: Counter[str], allowed: dict[str, int]) -> None:
    most = Counter({place: times * SNAPSHOTS for place, times in allowed.items()})
    assert not found - most


def agreed(
    lane: LaneReader, together: Triple, keys: dict[str, Any] | None = None, *, by_step: bool = False
) -> None:
    """One rank on the host and on the device.

    Args:
        keys: Of the configuration.
        by_step: Whether the device is asked in every step, too.
    """
    host = Trained(lane, together, Ranks(), **(keys or {}))
    with far_device():
        device = Trained(lane, together, Ranks(device=FAR), **(keys or {}))
    assert all(isinstance(each, FarTensor) for each in device.session.model.parameters())
    assert device.steps == host.steps >= SNAPSHOTS - 1
    assert len(device.losses) >= SNAPSHOTS - 1
    agree(host, device)
    within(device.learning, LEARNING | (CHOOSING if by_step else {}))
    within(device.scoring, SCORING)


@each_model
def test_a_device_comes_to_the_hosts_numbers_and_is_asked_for_few(together: Triple, lane: LaneReader) -> None:
    agreed(lane, together)


OPTIONS = {
    "mean of messages": ("tgn", "sequential", {"model_params": {"aggregator": "mean", "moment": "batch", **SMALL}}),
    "replay": ("tgn-history", "sequential", {"optimisation": {"batch_size": 16, "replay": {"ratio": 1.0, "batches": 4}}}),
    "all neighbours": ("sage-linear", "vertex", {"model_params": {"fanouts": [None]}}),
    "chosen sizes": ("tgcn", "hybrid", {"strategy_params": {"adjuster": "dqn"}}),
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_options_change_nothing_of_that(option: str, lane: LaneReader) -> None:
    model, strategy, keys = OPTIONS[option]
    agreed(lane, (model, strategy, "link-prediction"), keys, by_step=option == "chosen sizes")


@pytest.mark.parametrize("together", TIED, ids=lambda each: "-".join(each[:2]))
def test_two_ranks_with_a_device_each_do_so_too(together: Triple, lane: LaneReader) -> None:
    def both(mode: type[Any], device: Any) -> list[Trained]:
        def work(ranks: Ranks) -> Trained:
            ranks.device = device
            with mode():
                return Trained(lane, together, ranks)

        return side_by_side(2, work)

    try:
        host = both(nullcontext, torch.device("cpu"))
    except Failure as refused:
        assert "learns on one rank" in str(refused)
        return
    with far_device():
        for ours, theirs in zip(host, both(FarThread, FAR), strict=True):
            agree(ours, theirs)
            within(theirs.learning, LEARNING)
            within(theirs.scoring, SCORING)


def test_a_step_that_nobody_has_anything_for_is_settled_on_the_device(lane: LaneReader) -> None:
    with far_device():
        session = Session(config_for(("sage-linear", "vertex", "link-prediction")), lane, Ranks(device=FAR))
        learner, weights = session.strategy.learner, list(session.model.parameters())
        learner.step(None)
        learner.step(torch.stack([weight.square().sum() for weight in weights]).sum())
        (first, *_), (second, left_out) = learner.settled()
        assert first == 0
        assert second > 0
        assert not left_out


def test_the_pretended_device_refuses_what_cuda_refuses_and_sees_what_waits() -> None:
    with far_device():
        x, host = torch.ones(3, device=FAR), torch.ones(3)
        for refused in (
            lambda: x + host,
            lambda: torch.stack([x.sum(), host.sum()]),
            lambda: torch.cat([x, host]),
            lambda: host[torch.zeros(1, dtype=torch.int64, device=FAR)],
            lambda: x.index_put((torch.tensor([0]),), host[:1]),
        ):
            with pytest.raises(TwoDevicesError):
                refused()
        for waits in (
            lambda: float(x.sum()), x.tolist, lambda: x[x > 0], x.nonzero, lambda: bool((x > 0).all()),
            x.cpu, lambda: host.to(FAR), lambda: x[torch.tensor([0])], lambda: torch.repeat_interleave(x.long()),
            x.unique, lambda: x.copy_(host), lambda: torch.equal(x, x),
        ):  # fmt: skip
            assert waits_of(waits)[1].total() >= 1
        for runs in (
            lambda: x * 2 + torch.tensor(1.0), lambda: host.to(FAR, non_blocking=True), x[1:].exp_, lambda: x.fill_(2),
        ):  # fmt: skip
            found, waited = waits_of(runs)
            assert isinstance(found, FarTensor)
            assert not waited


@pytest.mark.slow
def test_no_place_is_on_the_list_for_nothing(lane: LaneReader) -> None:
    learning, scoring = Counter[str](), Counter[str]()
    with far_device():
        for together in TOGETHER:
            trained = Trained(lane, together, Ranks(device=FAR))
            learning += trained.learning
            scoring += trained.scoring
    assert set(learning) == set(LEARNING)
    assert set(scoring) == set(SCORING)
