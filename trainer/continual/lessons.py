"""Learning one snapshot: passes over a sample of its events, with weights that are finite afterwards, or as before."""

import copy
from dataclasses import replace
from enum import IntEnum

import structlog

from schemas.trainer_config import Optimisation
from stream.service.failure import Failure
from trainer.continual.overload import time_stratified
from trainer.data.examples import Examples
from trainer.data.negatives import Draw
from trainer.models.interface import Model
from trainer.ranks import Ranks
from trainer.strategies.interface import StepReport, Strategy
from trainer.strategies.soundness import is_sound

log = structlog.get_logger()


class Purpose(IntEnum):
    """What random numbers are for, beside those of ``trainer.data.examples.Purpose``; plus the epoch."""

    SAMPLE = 1 << 20


class Lessons:
    """Trains a strategy snapshot by snapshot; every method is a collective.

    A step whose loss or gradient is not finite is left out. If weights or the optimiser's state are not finite after a
    snapshot, they are put back to what they were before it, and its events only reach the memory.

    Args:
        strategy: Trains the model.
        model: The model.
        ranks: All ranks.
        optimisation: Epochs, batches, and how many snapshots in a row may fail.
        seed: The run's.
    """

    def __init__(
        self, strategy: Strategy, model: Model, ranks: Ranks, optimisation: Optimisation, seed: int
    ) -> None:
        self._strategy, self._model, self._ranks = strategy, model, ranks
        self._optimisation, self._seed = optimisation, seed
        self._failed = 0  # snapshots in a row of which nothing could be learned

    def learn(self, examples: Examples, passes: float) -> StepReport:
        """Learn a snapshot.

        Args:
            examples: This rank's.
            passes: Over its events: whole ones, and of the last its part, a time-stratified sample of batches.

        Raises:
            Failure: Too many snapshots in a row had no finite step.
        """
        weights = copy.deepcopy(self._model.state_dict())
        optimiser = copy.deepcopy(self._strategy.rate.state())
        reports = []
        for epoch in range(self._optimisation.epochs):
            share = min(1.0, passes - epoch)
            if share > 0:
                reports.append(self._strategy.train(self._sample(examples, share, epoch), epoch))
        report = _together(reports)
        (broken,) = self._ranks.any(
            not is_sound(self._model.state_dict()) or not is_sound(self._strategy.rate.state())
        )
        if broken:
            self._model.load_state_dict(weights)
            self._strategy.rate.restore(optimiser)
            self._strategy.undo()
            report = replace(report, events=0, loss=None, nonfinite=max(report.nonfinite, 1))
            log.warning("weights were not finite after a snapshot and are put back", tau=examples.tau)
        self._count(report, examples.tau, broken=broken)
        return report

    def _sample(self, examples: Examples, share: float, epoch: int) -> Examples:
        if share >= 1:
            return examples
        generator = Draw(self._seed, examples.tau, Purpose.SAMPLE + epoch).generator()
        events = len(examples.inserts)
        return examples.of_events(time_stratified(events, self._strategy.step_events, share, generator))

    def _count(self, report: StepReport, tau: int, *, broken: bool) -> None:
        if not report.steps:
            return
        self._failed = self._failed + 1 if broken or report.nonfinite >= report.steps else 0
        if self._failed >= self._optimisation.max_nonfinite:
            raise Failure(
                f"loss, gradient or weights were not finite in {self._failed} snapshots in a row, the last is {tau}; no "
                "checkpoint has such numbers, and a start goes on from the newest: lower optimisation.learning_rate, set "
                "optimisation.grad_clip, or look for extreme weights and features in the events of these snapshots"
            )


def _together(reports: list[StepReport]) -> StepReport:
    """What several passes over a snapshot did."""
    if not reports:
        return StepReport(steps=0, events=0, loss=None)
    return StepReport(
        steps=sum(report.steps for report in reports),
        events=max(report.events for report in reports),
        loss=next((report.loss for report in reversed(reports) if report.loss is not None), None),
        replayed=sum(report.replayed for report in reports),
        nonfinite=sum(report.nonfinite for report in reports),
        discarded=max(report.discarded for report in reports),
    )
