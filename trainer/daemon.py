"""The trainer daemon: follow a lane, predict each new snapshot, learn it, remember it, go on."""

import copy
import json
import time
from typing import Any, cast

import numpy as np
import structlog
import torch

from schemas.events import US_PER_S
from schemas.store import LaneManifest
from schemas.trainer_config import Budget, TrainerConfig
from stream.service.failure import Failure
from stream.store.lane.reader import LaneReader
from stream.store.window.view import WindowView
from trainer.checkpoint import Checkpoints
from trainer.data.examples import Examples, Sampling, insert_events, prepare
from trainer.data.history import History
from trainer.data.log_window import LogWindow, NamedWindow, edge_events, named
from trainer.data.node_names import NodeNames
from trainer.export_gate import HELD, ExportGate
from trainer.exporter import Exporter, version_of
from trainer.follower import Follower
from trainer.forgetting import Forgotten, forget_beyond
from trainer.metrics import TrainerMetrics
from trainer.models.interface import ModelShape, create_model
from trainer.phases import Phases
from trainer.ranks import Ranks
from trainer.score_file import ScoreFile, flat_figures
from trainer.scoring.predictions import Figures, Predictions, predict
from trainer.strategies.interface import EventStrategy, StepReport, create_strategy

log = structlog.get_logger()

LOGGED = ("sequence", "tau", "events", "loss", "ap", "random_ap", "edgebank_ap", "recency_ap")


class Trainer:
    """One rank of a continual run over one lane.

    Args:
        config: The configuration.
        lane: This rank's reader of the lane.
        ranks: All ranks; every rank builds a trainer and steps through the same snapshots.
        metrics: This rank's series.

    Raises:
        Failure: Model, strategy, lane and checkpoint don't go together.
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
        torch.manual_seed(config.seed)
        header = lane.header
        shape = ModelShape(header.node_features, config.window, config.seed, header.edge_features)
        self.strategy = create_strategy(config.strategy, config.strategy_params, config.model)
        self.model = create_model(config.model, shape, config.model_params).to(ranks.device)
        self.floor = copy.deepcopy(self.model)  # random weights, never trained
        self.strategy.setup(self.model, lane.header, ranks, config.optimisation, config.seed)
        own_parts = [part for part in range(lane.header.parts) if part % ranks.size == ranks.rank]
        self.names = NodeNames()
        # one more than the model's window: the newest snapshot is what the ones before it have to predict
        reads_events = self.strategy.reads == "events"
        view = LogWindow(lane) if reads_events else WindowView(lane, config.window + 1, own_parts)
        self.window = NamedWindow(view, self.names)
        if self.strategy.trains != "event" and config.budget != Budget():
            raise Failure(
                f"key budget bounds what event models remember, but {config.model} is a snapshot model, whose window is "
                "its bound; leave the key out"
            )
        self.window_s = config.window * header.interval_us / US_PER_S
        """How long the floor EdgeBank with a window remembers a pair."""
        self.history = History()
        self.known_nodes = 0
        self._saved = -1  # sequence of the newest checkpoint
        self.checkpoints = Checkpoints(config.checkpoint, config.keep_checkpoints)
        self.scores = ScoreFile(config.checkpoint)
        self._resume()
        exported = config.exports.embeddings or config.exports.scores
        self._exporter = Exporter(config, lane, ranks) if exported else None
        self._gate = ExportGate(config.exports.hold, self.scores.lines() if ranks.rank == 0 else ())
        self._held: str | None = None

    def step(self, manifest: LaneManifest) -> None:
        """Evaluate, then train on one snapshot: no event is learned before it was predicted."""
        phases = Phases()
        self.metrics.lag(len(self.lane.manifests) - 1 - self.sequence)
        skipped = self._skip_to(manifest.sequence)
        with phases("advance"):
            self.window.advance(manifest)
            self.strategy.advance(self.window)
        with phases("prepare"):
            examples = self._examples(manifest)
        with phases("score"):
            predictions = predict(
                self.strategy, self.model, self.floor, examples, self.ranks, window_s=self.window_s
            )
        figures = predictions.figures() if predictions is not None else {}
        scores_version = version_of(self.model) if self._exporter is not None else ""
        with phases("train"):
            report = self._learn(examples)
        if self._exporter is not None:
            with phases("export"):
                self._export(self._exporter, manifest, predictions, figures, scores_version)
        self.sequence = manifest.sequence
        with phases("forget"):
            evicted = self._forget(manifest)
        with phases("checkpoint"):
            self._record(manifest, examples, predictions, report, figures, phases, skipped, evicted)
            if (manifest.sequence + 1) % self.config.checkpoint_every == 0:
                self.save()
        self._observe(manifest, examples, report, figures, phases)

    def save(self) -> None:
        """Write a checkpoint of the last snapshot learned, if there is one and it isn't written yet; a collective."""
        if self.sequence < 0 or self._saved == self.sequence:
            return
        self._saved = self.sequence
        strategy = self.strategy.gather(self.strategy.state())
        if self.ranks.rank != 0:
            return
        manifest = self.lane.manifests[self.sequence]
        self.checkpoints.save(
            self.sequence,
            {
                "identity": self._identity(),
                "log_events_checksum": manifest.log_events_checksum,
                "known_nodes": self.known_nodes,
                "model": self.model.state_dict(),
                "strategy": strategy,
                "history": self.history.state(),
                "names": self.names.state(),
                "rng": torch.get_rng_state(),
            },
        )
        self.metrics.checkpointed()

    def _resume(self) -> None:
        found = self.checkpoints.newest()
        if found is None:
            if self.ranks.rank == 0:
                self.scores.cut_after(None)
            return
        path, state = found
        for key, value in self._identity().items():
            if state["identity"].get(key) != value:
                raise Failure(
                    f"checkpoint {path} was made with {key} = {state['identity'].get(key)}, the configuration has "
                    f"{value}; choose another folder in the key checkpoint, or configure the same"
                )
        sequence = state["sequence"]
        self.lane.refresh()
        if (
            sequence >= len(self.lane.manifests)
            or self.lane.manifests[sequence].log_events_checksum != state["log_events_checksum"]
        ):
            raise Failure(
                f"checkpoint {path} is after snapshot number {sequence}, which lane {self.lane.header.lane} of "
                f"{self.config.store} doesn't have with these events; choose another folder in the key checkpoint"
            )
        self.model.load_state_dict(state["model"])
        self.strategy.restore(state["strategy"])
        self.history.restore({name: column.numpy() for name, column in state["history"].items()})
        self.names.restore(state["names"])
        self.known_nodes = state["known_nodes"]
        torch.set_rng_state(state["rng"])
        self.sequence = self._saved = sequence
        if self.ranks.rank == 0:
            self.scores.cut_after(sequence)
            log.info("resumed", checkpoint=str(path), sequence=sequence)

    def _identity(self) -> dict[str, Any]:
        """What must not change between a checkpoint and its continuation."""
        return {
            "lane": self.lane.header.lane,
            "lane_checksum": self.lane.header.checksum,
            "model": self.config.model,
            "model_params": json.dumps(self.config.model_params, sort_keys=True),
            "strategy": self.config.strategy,
            "strategy_params": json.dumps(self.config.strategy_params, sort_keys=True),
            "window": self.config.window,
            "seed": self.config.seed,
        }

    def _skip_to(self, sequence: int) -> int:
        """Remember the events of snapshots that are left out; the model never learns them."""
        left_out = self.lane.manifests[self.sequence + 1 : sequence]
        for skipped in left_out:
            self.names.meet(skipped.num_nodes)
            columns = named(edge_events(self.lane, skipped.tau), self.names)
            self.strategy.remember(skipped.tau, columns, len(self.names))
            inserts = insert_events(columns)
            self.history.remember(inserts, len(self.names))
            self._forget(skipped)
            if self.ranks.rank == 0:
                self.metrics.used("state_only", len(inserts))
        return len(left_out)

    def _forget(self, manifest: LaneManifest) -> Forgotten:
        """After a snapshot: stay within the budget."""
        evicted = Forgotten()
        if self.strategy.trains == "event":
            remembering = cast(EventStrategy, self.strategy)
            since_us = manifest.tau * self.lane.header.interval_us
            evicted = forget_beyond(self.config.budget, remembering, self.history, self.names, since_us)
            if self.ranks.rank == 0:
                left = {"node": len(self.names), "event": len(remembering.event_times)}
                self.metrics.forgot(
                    {"node": evicted.nodes, "event": evicted.events, "pair": evicted.pairs},
                    {**left, "pair": self.history.pairs.size},
                )
        self.known_nodes = len(self.names)
        return evicted

    def _examples(self, manifest: LaneManifest) -> Examples:
        nodes = self.window.num_nodes
        events = self.window.events(manifest.tau)
        return prepare(
            manifest.tau,
            events,
            self.history,
            num_nodes=nodes,
            known=np.arange(nodes) < self.known_nodes,
            owned=self.strategy.owned(nodes),
            sampling=Sampling(self.config.seed),
            lesson=self.strategy.lesson(manifest.tau, insert_events(events)),
        )

    def _learn(self, examples: Examples) -> StepReport:
        reports = [self.strategy.train(examples, epoch) for epoch in range(self.config.optimisation.epochs)]
        return StepReport(
            steps=sum(report.steps for report in reports),
            events=reports[-1].events,
            loss=reports[-1].loss,
            nonfinite=sum(report.nonfinite for report in reports),
            discarded=reports[-1].discarded,
        )

    def _export(
        self,
        exporter: Exporter,
        manifest: LaneManifest,
        predictions: Predictions | None,
        figures: Figures,
        scores_version: str,
    ) -> None:
        """Export the snapshot, unless its AP holds that back; rank 0 judges."""
        was = self._held
        ap, floor = (figures.get(("ap", "all", scorer)) for scorer in ("model", "recency"))
        self._held = self._gate.judge(ap, floor) if self.ranks.rank == 0 else None
        (held,) = self.ranks.any(self._held is not None)
        if not held:
            self._held = exporter.export(
                self.strategy, self.model, self.names, manifest, predictions, scores_version
            )
        if self.ranks.rank != 0:
            return
        self.metrics.export_held(yes=self._held is not None)
        if self._held is not None and was is None:
            log.warning(
                "exports are held back; what is touched meanwhile goes out with the next one that is let out",
                tau=manifest.tau,
                reason=self._held,
            )
        elif self._held is None and was is not None:
            log.info("exports are let out again", tau=manifest.tau)

    def _record(
        self,
        manifest: LaneManifest,
        examples: Examples,
        predictions: Predictions | None,
        report: StepReport,
        figures: Figures,
        phases: Phases,
        skipped: int,
        evicted: Forgotten,
    ) -> None:
        if self.ranks.rank != 0 or predictions is None:
            return
        line: dict[str, Any] = {
            "sequence": manifest.sequence,
            "tau": manifest.tau,
            "events": manifest.num_events,
            "scored": len(predictions.positive),
            "trained": report.events,
            "discarded": report.discarded,
            "skipped": skipped,
            "evicted": evicted.nodes,
            "excluded": examples.excluded,
            "steps": report.steps,
            "seconds": dict(phases.seconds),
            "t_max": self._newest_us(manifest) / 1e6,
            "lag": len(self.lane.manifests) - 1 - manifest.sequence,
            "wall_time": time.time(),
            **flat_figures(figures),
        }
        if report.loss is not None:
            line["loss"] = report.loss
        if self._held is not None:
            line[HELD] = self._held
        self.scores.append(line)
        log.info(
            "snapshot",
            **{
                key: round(line[key], 4) if isinstance(line[key], float) else line[key]
                for key in LOGGED
                if key in line
            },
        )

    def _observe(
        self,
        manifest: LaneManifest,
        examples: Examples,
        report: StepReport,
        figures: Figures,
        phases: Phases,
    ) -> None:
        self.metrics.seconds(phases.seconds)
        self.metrics.resources(
            self.ranks.sent_bytes,
            {
                "window": self.window.memory_bytes,
                "history": self.history.memory_bytes,
                **self.strategy.held_bytes,
            },
        )
        self.metrics.lag(len(self.lane.manifests) - 1 - manifest.sequence)
        if self.ranks.rank != 0:
            return  # counts of all ranks are rank 0's, so that sums over ranks are right
        self.metrics.scored(figures)
        self.metrics.excluded(examples.excluded)
        self.metrics.used("trained", report.events)
        self.metrics.used("discarded", report.discarded)
        self.metrics.learned(report.loss, report.nonfinite, self._newest_us(manifest))

    def _newest_us(self, manifest: LaneManifest) -> int:
        return self.lane.log.snapshots[manifest.sequence].max_t_us


def follow(trainer: Trainer, follower: Follower) -> None:
    """The loop: one snapshot after the other, until it is time to end; then a last checkpoint."""
    while (manifest := follower.next(trainer.lane, trainer.sequence, trainer.config.lag)) is not None:
        trainer.step(manifest)
    trainer.save()
