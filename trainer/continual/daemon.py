"""The trainer daemon: follow a lane, predict each new snapshot, then learn and remember it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import structlog

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.auto import AutoStrategy
from freshet_graph.trainer.continual.drift import DriftWatch
from freshet_graph.trainer.continual.follower import Follower
from freshet_graph.trainer.continual.forgetting import Forgotten, forget_beyond
from freshet_graph.trainer.continual.journal import Remaining, ScoreFile, SnapshotStep, observe, write_line
from freshet_graph.trainer.continual.pace import LoadPolicy, Pace
from freshet_graph.trainer.continual.writes import Writes, written
from freshet_graph.trainer.exports.exporter import Exporter, ExportGate, version_of
from freshet_graph.trainer.learning.soundness import is_sound
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import flat_figures
from freshet_graph.trainer.session.checkpoint import Checkpoints, checkpoint_of_first, content_of, identity
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import SnapshotTrainer
from freshet_graph.trainer.strategies.cost_model import AUTO
from freshet_graph.trainer.strategies.figures import declared_by, shown
from freshet_graph.trainer.validation import require_trainable

SHARE = 20
"""Seconds between two checkpoints per second that one takes. A crash repeats at most these seconds and a snapshot."""


class Saving:
    """When the next checkpoint is due. Rank 0 decides for all ranks. Learning does not depend on it.

    Args:
        every: Snapshots between checkpoints; None: they take at most one part in ``SHARE`` of the time. A stream with
            waiting time has one after every snapshot.
        now: The clock, seconds.
    """

    def __init__(self, every: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._every, self._now = every, now
        self._took = 0.0
        self._ended = now()

    def due(self, sequence: int) -> bool:
        """Whether a checkpoint is due after snapshot number ``sequence``."""
        if self._every is not None:
            return (sequence + 1) % self._every == 0
        return self._now() - self._ended >= SHARE * self._took

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the body, which writes a checkpoint."""
        began = self._now()
        yield
        self._ended = self._now()
        self._took = self._ended - began


log = structlog.get_logger()


class Trainer:
    """One rank of a continual run over one lane.

    Args:
        config: The configuration.
        lane: This rank's reader of the lane.
        ranks: All ranks; each builds a trainer and steps through the same snapshots.
        metrics: This rank's series.

    Raises:
        Failure: Model, strategy, lane and checkpoint do not go together.
    """

    def __init__(
        self, config: TrainerConfig, lane: LaneReader, ranks: Ranks, metrics: TrainerMetrics
    ) -> None:
        self.config = config
        self.lane = lane
        self.ranks = ranks
        self.metrics = metrics
        self.sequence = -1
        """Of the last snapshot learned; −1 before the first."""
        self._learned: LaneManifest | None = None  # by this process; the lane may no longer keep it
        require_trainable(config)
        self._auto = AutoStrategy(config, lane, ranks) if config.strategy == AUTO else None
        self.session = Session(config, lane, ranks) if self._auto is None else self._auto.open()
        interval_s = lane.header.interval_us / US_PER_S
        self.pace = Pace(config.optimisation, self.session.model.kind, interval_s)
        self.load = LoadPolicy(config.overload, config.lag.max_snapshots)
        self._saved = -1  # sequence of the newest checkpoint
        self._saving = Saving(config.checkpoint_every)
        self.snapshot_trainer = SnapshotTrainer(self.session, self._saving.due)
        self.checkpoints = Checkpoints(config.checkpoint, config.keep_checkpoints)
        self.scores = ScoreFile(config.checkpoint)
        self.writes = Writes()
        self._resume()
        self._require_equal_weights("at the start")
        self._show_strategy()
        exported = config.exports.embeddings or config.exports.scores
        self._exporter = Exporter(config, lane, ranks) if exported else None
        lines = self.scores.lines() if ranks.rank == 0 else ()
        task = self.session.task
        self._gate = ExportGate(config.exports.hold, task.selection_metric, task.baseline, lines)
        self._drift = DriftWatch(config.drift, task.selection_metric, lines)
        self._held_reason: str | None = None
        self._remaining = Remaining()

    def step(self, manifest: LaneManifest) -> SnapshotStep:
        """Predict one snapshot, then train on it: no event is learned before its prediction. Returns all that happened."""
        step = SnapshotStep(manifest)
        phases = step.phases
        self.metrics.lag(self._lag(self.sequence))
        step.skipped = self._skip_to(manifest.sequence)
        if self._auto is not None:
            with phases("choose"):
                self._continue_with(self._auto.at_border(self.session, manifest))
                self._show_strategy()
        turn = self.pace.turn_for(manifest.num_events)
        self.session.strategy.resize(turn.batch)
        step.passes = self._passes(manifest.sequence, turn.passes)
        session = self.session
        step.step_events = session.strategy.step_events
        with phases("advance"):
            session.advance(manifest)
        with phases("prepare"):
            step.examples = session.task.examples(session.view, session.strategy)
        with phases("score"):
            step.evaluation = session.task.evaluate(
                session.strategy, session.model, session.untrained, step.examples, self.ranks
            )
            self._take_figures(step)
        scores_version = version_of(session.model) if self._exporter is not None else ""
        session.strategy.learner.rate.factor = turn.factor
        with phases("train"):
            step.report = self.snapshot_trainer.learn(step.examples, step.passes)
            if self._auto is not None:
                self._auto.learned(session, step.report, step.passes)
        if self._exporter is not None:
            with phases("export"), written(f"export of snapshot {manifest.tau} to {self.config.store}"):
                self._export(self._exporter, step, scores_version)
        self.sequence, self._learned = manifest.sequence, manifest
        with phases("forget"):
            step.evicted = self._forget(manifest)
        with phases("checkpoint"):
            if self.ranks.rank == 0:
                training = shown(declared_by(session.strategy), step.report.figures)
                choice = {} if self._auto is None else self._auto.line()
                line = partial(
                    write_line,
                    self.scores,
                    step,
                    training | choice,
                    **self._event_span(manifest),
                    lag=self._lag(self.sequence),
                    remaining=self._remaining,
                )
                self.writes.add(str(self.scores.path), line)
            if self.snapshot_trainer.checkpoint_due:
                self.save()
        self._observe(step)
        return step

    def save(self) -> None:
        """Write a checkpoint of the last learned snapshot, if there is one without a checkpoint; a collective."""
        if self.sequence < 0 or self._saved == self.sequence:
            return
        self._saved = self.sequence
        self._require_equal_weights(f"after snapshot number {self.sequence}")
        with self._saving.measured():
            self._save()

    def _save(self) -> None:
        state = self.session.state()
        if self.ranks.rank != 0:
            return
        manifest = self._learned
        assert manifest is not None, "what was resumed is saved"
        if not is_sound(state["model"]):  # not even at the start, or they would have been put back
            raise Failure(
                f"weights after snapshot {manifest.tau} are not finite. No checkpoint is written. The next start resumes "
                "from the newest one"
            )
        state |= {
            "identity": identity(self.config, self.lane),
            "log_events_checksum": manifest.log_events_checksum,
            "lessons": self.snapshot_trainer.book.state(),
            "pace": self.pace.state(),
            **({} if self._auto is None else {"choice": self._auto.state()}),
        }
        checkpoint = partial(self._write_checkpoint, self.sequence, manifest.tau, state)
        self.writes.add(f"checkpoint in {self.config.checkpoint}", checkpoint)

    def _write_checkpoint(self, sequence: int, tau: int, state: dict[str, Any]) -> None:
        self.scores.sync()  # a checkpoint has all lines up to its own
        path = self.checkpoints.save(sequence, state)
        log.info("checkpoint", path=str(path), sequence=sequence, tau=tau, for_people="")
        self.metrics.checkpointed()

    def _resume(self) -> None:
        newest = checkpoint_of_first(self.config, self.lane, self.ranks)
        interval_s = self.lane.header.interval_us / US_PER_S
        if newest is None:
            if self.ranks.rank == 0:
                with written(str(self.scores.path)):
                    self.scores.cut_after(None)
                self.metrics.begins(interval_s, None, None)
            return
        path, state = newest
        sequence = state["sequence"]
        with content_of(path):
            if self._auto is not None:
                self._auto.restore(state["choice"])
                self._continue_with(self._auto.open())
            self.session.restore(state)
            self.session.restore_generators(state)
            self.snapshot_trainer.book.restore(state.get("lessons", {}))
            self.pace.restore(state.get("pace", {}))
        self.sequence = self._saved = sequence
        if self.ranks.rank == 0:
            with written(str(self.scores.path)):
                self.scores.cut_after(sequence)
            newest_us = self.lane.log.snapshots[sequence].max_t_us
            self.metrics.begins(interval_s, newest_us, path.stat().st_mtime)
            log.info("resumed", checkpoint=str(path), sequence=sequence)

    def _require_equal_weights(self, when: str) -> None:
        """Check that all ranks have the same weights, bit for bit; a collective.

        Raises:
            Failure: They differ (on all ranks).
        """
        if self.ranks.size > 1 and (others := self.ranks.unlike_first(version_of(self.session.model))):
            raise Failure(
                f"weights of rank {others} differ from those of rank 0 {when}. Start all ranks again: they resume from rank "
                "0's newest checkpoint. If they differ again, give all hosts the same releases and processors"
            )

    def _continue_with(self, session: Session) -> None:
        """Train with this session from now on; without effect if it is the present one."""
        if session is not self.session:
            self.session = session
            self.snapshot_trainer.continue_with(session)

    def _show_strategy(self) -> None:
        if self.ranks.rank == 0:
            predicted_s = {} if self._auto is None else self._auto.predicted_s
            self.metrics.strategy(self.session.config.strategy, predicted_s)

    def _skip_to(self, sequence: int) -> int:
        """Remember the events of snapshots that are left out; the model never learns them."""
        manifests = self.lane.manifests
        first = manifests.first if self.sequence < 0 else self.sequence + 1
        # none that was dropped is passed over
        left_out = [manifests[number] for number in range(first, sequence)]
        for skipped in left_out:
            beat()
            events = self.session.pass_over(skipped)
            self._forget(skipped)
            if self.ranks.rank == 0:
                self.metrics.used("state_only", events)
        return len(left_out)

    def _forget(self, manifest: LaneManifest) -> Forgotten:
        """Stay within the budget after a snapshot."""
        session = self.session
        memory, history = session.strategy.memory, session.task.history
        if memory is None or history is None:
            return Forgotten()
        since_us = manifest.tau * self.lane.header.interval_us
        evicted = forget_beyond(self.config.budget, memory, history, session.names, since_us)
        session.task.forgot(len(session.names), evicted.kept_nodes)
        if self.ranks.rank == 0:
            left = {"node": len(session.names), "event": len(memory.event_times)}
            self.metrics.forgot(
                {"node": evicted.nodes, "event": evicted.events, "pair": evicted.pairs},
                {**left, "pair": history.pairs.size},
            )
        return evicted

    def _lag(self, sequence: int) -> int:
        """Snapshots of the lane after number ``sequence``."""
        return len(self.lane.manifests) - 1 - sequence

    def _passes(self, sequence: int, most: int) -> float:
        """Passes over the snapshot's events, the same on all ranks."""
        lag = self._lag(sequence)
        if self.config.overload == "subsample":
            lag = self.ranks.from_first(lag)
        return self.load.passes(lag, most)

    def _take_figures(self, step: SnapshotStep) -> None:
        """Compute the figures of the predictions, and whether they have become worse."""
        if step.evaluation is not None:
            step.figures = step.evaluation.figures()
            if (links := step.evaluation.links) is not None:
                step.errors, step.sizes = links.errors(), links.sizes
            step.sliding = self._drift.see({"scored": step.evaluation.scored, **flat_figures(step.figures)})
            if step.sliding.drifted:
                log.warning(
                    "the model predicts worse than before", tau=step.manifest.tau, drop=step.sliding.drop
                )
        if self.config.optimisation.rate == "on-drift" and self.ranks.any(step.sliding.drifted)[0]:
            self.session.strategy.learner.rate.drifted()

    def _export(self, exporter: Exporter, step: SnapshotStep, scores_version: str) -> None:
        """Export the snapshot, unless its figures hold it back; rank 0 judges."""
        was, tau = self._held_reason, step.manifest.tau
        scored = 0 if step.evaluation is None else step.evaluation.scored
        self._held_reason = self._gate.check(step.figures, scored) if self.ranks.rank == 0 else None
        (is_held,) = self.ranks.any(self._held_reason is not None)
        if not is_held:
            self._held_reason = exporter.export(self.session, step.manifest, step.evaluation, scores_version)
        step.held_reason = self._held_reason
        if self.ranks.rank != 0:
            return
        self.metrics.export_held(yes=self._held_reason is not None)
        if self._held_reason is not None and was is None:
            log.warning(
                "exports are held back; what is touched meanwhile goes out with the next one that is let out",
                tau=tau,
                reason=self._held_reason,
            )
        elif self._held_reason is None and was is not None:
            log.info("exports are let out again", tau=tau)

    def _observe(self, step: SnapshotStep) -> None:
        self.metrics.seconds(step.phases.seconds | step.report.phases())
        self.metrics.waited(step.report.traffic.wait_s)
        self.metrics.figures(step.report.figures)
        self.metrics.resources(
            self.ranks.traffic,
            {
                "window": self.session.view.memory_bytes,
                "history": self.session.task.memory_bytes,
                **self.session.strategy.held_bytes,
            },
        )
        self.metrics.lag(self._lag(self.sequence))
        if self.ranks.rank == 0:
            observe(self.metrics, step, self.session.task, **self._event_span(step.manifest))

    def _event_span(self, manifest: LaneManifest) -> dict[str, int]:
        """Times of the snapshot's newest event, and of its oldest one that is not late, microseconds."""
        newest_us = self.lane.log.snapshots[manifest.sequence].max_t_us
        edges_us = self.session.view.events(manifest.tau).visible_t
        return {"newest_us": newest_us, "oldest_us": int(edges_us[0]) if len(edges_us) else newest_us}


def follow(trainer: Trainer, follower: Follower) -> None:
    """Train on snapshots until it is time to end, then write a last checkpoint.

    No snapshot is learned while a full disk has no room for what is to be written of the one before.
    """
    unwritten = trainer.writes.waiting
    while (manifest := follower.next(trainer.lane, trainer.sequence, trainer.load, unwritten)) is not None:
        trainer.step(manifest)
    trainer.save()
    trainer.writes.finish()
