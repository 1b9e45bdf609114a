"""Learning one snapshot: passes over a sample of its events. Weights that are not finite afterwards are put back.

Strategies that learn earlier snapshots again get their examples with the original inputs.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.data.examples import Purpose
from freshet_graph.trainer.data.negatives import Draw
from freshet_graph.trainer.learning.soundness import copied, is_sound
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.figures import declared_by, merged
from freshet_graph.trainer.strategies.interface import StepReport, Strategy
from freshet_graph.trainer.tasks.interface import QueryBatch, SnapshotExamples, Task
from freshet_graph.trainer.wire.traffic import Traffic


@dataclass(frozen=True, slots=True)
class PastExamples:
    """A former snapshot's examples, as this rank learns it again.

    Attributes:
        tau: Snapshot.
        sequence: Its number in the log.
        queries_per_example: Questions per item.
        queries: All of them.
        truth: float32 (items · each,).
    """

    tau: int
    sequence: int
    queries_per_example: int
    queries: QueryBatch
    truth: Float32

    def __len__(self) -> int:
        return len(self.truth) // self.queries_per_example

    def part(self, chosen: Int64) -> tuple[QueryBatch, Float32]:
        """See ``SnapshotExamples.part``."""
        rows = np.concatenate([chosen + len(self) * turn for turn in range(self.queries_per_example)])
        queries = type(self.queries)(
            **{name: column[rows] for name, column in _columns(self.queries).items()}
        )
        return queries, self.truth[rows]


class ExampleWindow:
    """Keeps the examples of the last snapshots.

    Args:
        task: Makes the examples.
        most: How many are learned at once, the newest included.
    """

    def __init__(self, task: Task, most: int) -> None:
        self._task = task
        self._former: deque[PastExamples] = deque(maxlen=max(most - 1, 0))
        self._newest: SnapshotExamples | None = None

    def open(self, examples: SnapshotExamples) -> None:
        """Take in the newest snapshot's examples; the one before becomes a former one."""
        self._former.extend(self._newest_kept())
        self._newest = examples

    def with_newest(self, examples: SnapshotExamples) -> list[Any]:
        """The former examples, oldest first, and the newest or a sample of it."""
        return [*self._former, examples]

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {
            str(place): {
                "tau": examples.tau,
                "sequence": examples.sequence,
                "each": examples.queries_per_example,
                "truth": examples.truth,
                "asked": _columns(examples.queries),
            }
            for place, examples in enumerate([*self._former, *self._newest_kept()])
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self._newest = None
        for place in range(len(state)):
            row = state[str(place)]
            queries = self._task.query_class(
                **{name: np.asarray(column) for name, column in row["asked"].items()}
            )
            self._former.append(
                PastExamples(
                    int(row["tau"]), int(row["sequence"]), int(row["each"]), queries, np.asarray(row["truth"])
                )
            )

    def _newest_kept(self) -> list[PastExamples]:
        """The newest examples as it is learned again; none if no former examples is wanted."""
        return [] if self._newest is None or not self._former.maxlen else [past_examples(self._newest)]


def past_examples(examples: SnapshotExamples) -> PastExamples:
    """A snapshot's examples as it is learned again."""
    return PastExamples(
        examples.tau,
        examples.sequence,
        examples.queries_per_example,
        *examples.part(np.arange(len(examples))),
    )


def _columns(queries: Any) -> dict[str, Any]:
    return {field.name: getattr(queries, field.name) for field in fields(queries)}


log = structlog.get_logger()


class SnapshotTrainer:
    """Trains a strategy snapshot by snapshot; every method is a collective.

    A step whose loss or gradient is not finite is left out. If weights or the optimiser's state are not finite after a
    snapshot, their values before it are put back, and its events only reach the memory.

    Args:
        session: Its strategy and model are trained, by its configuration.
        due: Whether a checkpoint is due, as rank 0 sees it when a snapshot is learned.

    Attributes:
        checkpoint_due: What ``due`` returned on rank 0 after the last ``learn``.
    """

    def __init__(self, session: Session, due: Callable[[int], bool] = lambda _: False) -> None:
        self._session, self._due = session, due
        self.checkpoint_due = False
        self._optimisation, self._ranks = session.config.optimisation, session.ranks
        self.rewind()
        self._failed = 0  # snapshots in a row without a finite step
        self._learned = False  # whether any snapshot had one
        self._last = 0  # snapshot with a step

    def learn(self, examples: SnapshotExamples, passes: float) -> StepReport:
        """Learn a snapshot.

        Args:
            examples: This rank's.
            passes: Over its events. A fraction stands for a pass over a time-stratified sample of batches.

        Raises:
            Failure: Too many snapshots in a row had no finite step.
        """
        strategy, model = self._session.strategy, self._session.model
        weights = copied(model.state_dict())
        optimiser = copied(strategy.learner.state())
        self.book.open(examples)
        report = _together(
            strategy,
            [
                self._pass(self._sample(examples, min(1.0, passes - epoch), epoch), epoch)
                for epoch in range(math.ceil(passes))
            ],
        )
        broken, self.checkpoint_due = self._ranks.any(
            not is_sound(model.state_dict()) or not is_sound(strategy.learner.state()),
            self._ranks.rank == 0 and self._due(examples.sequence),
        )
        if broken:
            model.load_state_dict(weights)
            strategy.learner.restore(optimiser)
            strategy.undo()
            report = replace(report, events=0, loss=None, nonfinite=max(report.nonfinite, 1))
            log.warning("weights were not finite after a snapshot and are put back", tau=examples.tau)
        self._count(report, examples.tau, broken=broken)
        return report

    def continue_with(self, session: Session) -> None:
        """Train another session from the next snapshot on; former examples are forgotten, failed snapshots still count."""
        self._session = session
        self.rewind()

    def once(self, examples: SnapshotExamples, epoch: int) -> StepReport:
        """Learn a snapshot in a single pass, numbered ``epoch``, without the check for non-finite weights.

        Steps from such weights have no finite loss, so the next snapshots count as failed.

        Raises:
            Failure: As for ``learn``.
        """
        self.book.open(examples)
        report = self._pass(examples, epoch)
        self._count(report, examples.tau)
        return report

    def rewind(self) -> None:
        """Forget former examples, as at the start of an epoch; failed snapshots still count."""
        self.book = ExampleWindow(self._session.task, self._session.strategy.needs.example_sets)

    def require_learned(self) -> None:
        """Check that training had a finite step, if it had any.

        Raises:
            Failure: All steps were left out.
        """
        if self._failed and not self._learned:
            raise self._failure()

    def _pass(self, examples: SnapshotExamples, epoch: int) -> StepReport:
        before, began = self._ranks.traffic.copy(), time.perf_counter()
        report = self._session.strategy.learn(self.book.with_newest(examples), epoch)
        seconds = {"train": time.perf_counter() - began, **report.seconds}
        return replace(report, seconds=seconds, traffic=self._ranks.traffic.since(before))

    def _sample(self, examples: SnapshotExamples, share: float, epoch: int) -> SnapshotExamples:
        if share >= 1:
            return examples
        session = self._session
        generator = Draw(session.seed, examples.sequence, Purpose.LEARNED_EVENTS + epoch).generator()
        chosen = time_stratified(examples.items, session.strategy.step_events, share, generator)
        return examples.of_events(chosen)

    def _count(self, report: StepReport, tau: int, *, broken: bool = False) -> None:
        if not report.steps:
            return
        failed = broken or report.nonfinite >= report.steps
        self._failed, self._last = self._failed + 1 if failed else 0, tau
        self._learned |= not failed
        if self._failed >= self._optimisation.max_nonfinite:
            raise self._failure()

    def _failure(self) -> Failure:
        return Failure(
            f"loss, gradient or weights were not finite in {self._failed} snapshots in a row, the last is {self._last}. Lower "
            "optimisation.learning_rate, set optimisation.grad_clip, or look for extreme weights and features in the "
            "events of these snapshots"
        )


def _together(strategy: Strategy, reports: list[StepReport]) -> StepReport:
    """The report of several passes over a snapshot."""
    if not reports:
        return StepReport()
    return StepReport(
        steps=sum(report.steps for report in reports),
        events=max(report.events for report in reports),
        loss=next((report.loss for report in reversed(reports) if report.loss is not None), None),
        replayed=sum(report.replayed for report in reports),
        nonfinite=sum(report.nonfinite for report in reports),
        discarded=max(report.discarded for report in reports),
        seconds={
            phase: sum(report.seconds.get(phase, 0.0) for report in reports)
            for phase in dict.fromkeys(phase for report in reports for phase in report.seconds)
        },
        traffic=Traffic.sum(report.traffic for report in reports),
        figures=merged(declared_by(strategy), (report.figures for report in reports)),
    )


def time_stratified(
    events: int, batch: int, share: float, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Choose whole batches of consecutive events, spread evenly: one in every stretch of 1 / share batches.

    Batches stay whole because an event is learned from the memory before its batch. Events drawn one by one would be
    learned from a staler memory than they are predicted from.

    Args:
        events: How many, in order of time.
        batch: Events per batch.
        share: Of the batches, in 0 … 1; each is equally likely.
        generator: Draws the begin of the first stretch.

    Returns:
        bool (events,).
    """
    ends = generator.random() + share * np.arange(-(-events // batch) + 1)
    taken: NDArray[np.bool_] = np.floor(ends[1:]) > np.floor(ends[:-1])
    return np.repeat(taken, batch)[:events]
