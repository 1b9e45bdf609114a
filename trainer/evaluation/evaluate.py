"""Offline evaluation on a file or a store: train, pick by validation, test, as the TGN line of work does."""

import copy
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from schemas.trainer_config import TrainerConfig
from stream.service.failure import Failure
from stream.service.scratch import scratch_folder
from stream.store.lane.reader import LaneReader
from stream.store.window.view import WindowView
from trainer.data.examples import Examples, insert_events
from trainer.data.history import Inserts
from trainer.data.split import Split, split_by_time
from trainer.data.stored_negatives import StoredNegatives, write_negatives
from trainer.evaluation.classification import (
    UnlabelledWindow,
    event_labels,
    node_figures,
    require_both_kinds,
)
from trainer.evaluation.foreign_scores import ForeignScores, judge
from trainer.evaluation.own_store import all_inserts, build_store_of
from trainer.evaluation.progress import Progress
from trainer.evaluation.protocol import OfflineProtocol
from trainer.models.interface import ModelShape, create_model
from trainer.ranks import Ranks
from trainer.scoring.predictions import Figures, Predictions, join, predict
from trainer.strategies.interface import create_strategy
from trainer.strategies.sequential import SequentialStrategy
from trainer.workable import require_evaluable

log = structlog.get_logger()

WARMED = 32
"""Events of a snapshot that are used before seconds are counted."""

NODE_FIGURES = ("auroc", "validation_auroc", "random_auroc", "activity_auroc")

NONE = -1.0
"""In the place of a figure that cannot be computed, where ranks agree on one."""

TABLE = {
    "ap": ("ap", "all", "model"),
    "auc": ("auc", "all", "model"),
    "mrr": ("mrr", "all", "model"),
    "hits_at_10": ("hits_at_10", "all", "model"),
    "inductive_ap": ("ap", "inductive", "model"),
    "transductive_ap": ("ap", "transductive", "model"),
    "historical_ap": ("ap", "historical", "model"),
    "random_ap": ("ap", "all", "random"),
    "edgebank_ap": ("ap", "all", "edgebank"),
    "edgebank_window_ap": ("ap", "all", "edgebank_window"),
    "recency_ap": ("ap", "all", "recency"),
}


def evaluate(
    config: TrainerConfig,
    data: str | Path,
    ranks: Ranks,
    *,
    shares: tuple[float, float, float],
    seeds: int,
    as_of: str | None = None,
    negatives: str | None = None,
    scores: str | None = None,
    columns: str | None = None,
) -> dict[str, Any] | None:
    """Evaluate the configured model on a file of events; a collective.

    The file becomes a store in a temporary folder, with one lane by the algorithm that ``lane`` names. Every epoch
    passes over the training events in log order and then predicts the validation events; the weights of the best
    epoch predict the test events. Negatives are uniform over the file's destinations, those to learn from over the
    training split's.

    Args:
        config: ``interval_s``, ``parts``, ``model``, ``optimisation`` … as for training.
        data: Parquet, CSV or TSV; or a store's folder or address, whose events up to ``as_of`` are taken as a file's: late
            ones stand where their time is.
        ranks: All ranks, on one machine.
        shares: Of training, validation and test in time quantiles.
        seeds: Repetitions with seeds ``seed``, ``seed`` + 1 …
        as_of: A moment of the store; None: all that is sealed.
        negatives: A file of negatives to be judged by, in all repetitions; made, from ``seed``, where it is missing.
        scores: A file of another model's scores for the test events and these negatives: it is judged, on one rank,
            and nothing is trained.
        columns: What the file calls an event's columns, as the option ``--columns`` takes it; None: the same.

    Returns:
        On rank 0: the keys of docs/cli.md, means over seeds, ``<figure>_spread`` (standard deviation) with more
        than one seed, and ``runs``, one entry a seed. A figure that cannot be computed is absent. Elsewhere None.
    """
    require_evaluable(config, ranks.size)  # before a large file is partitioned
    if scores is not None and (negatives is None or ranks.size > 1):
        raise Failure(
            "--scores needs --negatives FILE, whose negatives were scored"
            if negatives is None
            else "--scores trains nothing: leave --ranks out"
        )
    parts = config.parts or ranks.size
    with ExitStack() as stack:  # mapped files stay readable for ranks that are not yet done
        made = str(stack.enter_context(scratch_folder("evaluate"))) if ranks.rank == 0 else ""
        folder = ranks.text_from_first(made)
        if not build_store_of(config, data, as_of, folder, parts, ranks, columns):
            return None
        lane = LaneReader(folder, config.lane)
        labels = event_labels(lane) if config.task == "node-classification" else None
        inserts = all_inserts(lane)
        split = split_by_time(inserts.visible_us, shares)
        if labels is not None:
            require_both_kinds(np.concatenate(list(labels.values())), inserts.visible_us, split)
        stored = _stored(negatives, lane, inserts, split, config.seed, ranks) if negatives else None
        if scores is not None:
            found = judge(
                ForeignScores(scores),
                OfflineProtocol(lane, inserts, split, 0, stored, config.history_moment),
                ranks,
            )
            return _foreign(scores, found, lane, inserts)
        runs = []
        for seed in range(config.seed, config.seed + seeds):
            protocol = OfflineProtocol(lane, inserts, split, seed, stored, config.history_moment)
            runs.append(_Run(config, lane, ranks, protocol, seed, labels).figures())
    if ranks.rank != 0:
        return None
    if labels is None and not any("random_ap" in run for run in runs):
        log.warning(
            "no score: negatives are other destinations, and the training events have fewer than two",
            data=str(data),
        )
    return {
        "model": config.model,
        "strategy": config.strategy,
        "ranks": ranks.size,
        "epochs": config.optimisation.epochs,
        **_summary(runs),
        "seeds": seeds,
        "parts": parts,
        "snapshots": len(lane.manifests),
        "events": len(inserts),
        "runs": runs,
    }


class _Run:
    """One seed: all epochs, then the test."""

    def __init__(
        self,
        config: TrainerConfig,
        lane: LaneReader,
        ranks: Ranks,
        protocol: OfflineProtocol,
        seed: int,
        labels: dict[int, NDArray[np.int64]] | None,
    ) -> None:
        self.labels = labels
        self.config = config
        self.lane = lane
        self.ranks = ranks
        self.split = protocol.split
        self.protocol = protocol
        self.seed = seed
        self.progress = Progress(
            told=ranks.rank == 0,
            seed=seed,
            epochs=config.optimisation.epochs,
            snapshots=len(lane.manifests),
        )
        torch.manual_seed(seed)
        shape = ModelShape(lane.header.node_features, config.window, seed, lane.header.edge_features)
        self.strategy = create_strategy(config.strategy, config.strategy_params, config.model)
        self.model = create_model(config.model, shape, config.model_params).to(ranks.device)
        self.floor = copy.deepcopy(self.model)
        self.strategy.setup(self.model, lane.header, ranks, config.optimisation, seed)

    def figures(self) -> dict[str, Any]:
        """Train, pick, test; figures of the test, seconds an epoch and peak memory of this rank."""
        best, chosen, seconds, discards = NONE, 0, [], []
        weights, state = self._copy()
        self._warm_up()
        self.model.load_state_dict(weights)
        self.strategy.restore(state)
        for epoch in range(self.config.optimisation.epochs):
            began = time.perf_counter()
            validation, loss, discarded = self._epoch(epoch)
            seconds.append(time.perf_counter() - began)
            discards.append(discarded)
            ap = self._agree(validation, "ap")
            if self.ranks.rank == 0:
                told = {} if ap == NONE else {"validation_ap": ap}
                log.info("epoch", seed=self.seed, epoch=epoch, loss=loss, discarded=discarded, **told)
            if ap > best or best == NONE:  # without a figure to pick by, the last epoch
                best, chosen = ap, epoch
                weights, state = self._copy()
        self.model.load_state_dict(weights)
        self.strategy.restore(state)
        return {
            "seed": self.seed,
            **self._judged(),
            **({} if best == NONE else {"validation_ap": best}),
            "best_epoch": chosen,
            "discarded": sum(discards) / len(discards),
            "epoch_s": sum(seconds) / len(seconds),
            "peak_mib": _peak_mib(),
        }

    def _judged(self) -> dict[str, float]:
        """Figures of the test by their names in the result."""
        if self.labels is None:
            test = self._test()
            return {name: test[key] for name, key in TABLE.items() if key in test}
        assert isinstance(self.strategy, SequentialStrategy)
        return node_figures(
            self.strategy,
            {"model": self.model, "random": self.floor},
            lambda: self._snapshots(float("inf"), self.config.optimisation.epochs),
            self.labels,
            self.split,
            self.config.classifier,
            self.seed,
        )

    def _warm_up(self) -> None:
        """Use on a few events of the first snapshots what is compiled at its first use; random numbers stay.

        Whoever calls undoes it. Snapshots after the first have something to look back at.
        """
        devices = [self.ranks.device] if self.ranks.device.type == "cuda" else []
        warmed = 0
        with torch.random.fork_rng(devices):
            for examples, t in self._snapshots(self.split.train_until_us, 0):
                few = self.split.train(t) & (np.arange(len(t)) < WARMED)
                if few.any():
                    asked = examples.of_events(few)
                    predict(self.strategy, self.model, None, asked.only_random(), self.ranks)
                    self.strategy.train(asked, 0)
                    warmed += 1
                if warmed == 3:
                    return

    def _copy(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights, and what goes with them: a memory replayed through other weights is another memory."""
        return copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.strategy.state())

    def _epoch(self, epoch: int) -> tuple[Figures, float, int]:
        """Figures of the validation, mean loss, and events that no rank could learn."""
        losses, learned, discarded, validation = 0.0, 0, 0, []
        self.strategy.rewind()
        for examples, t in self._snapshots(self.split.validate_until_us, epoch):
            if self.split.train(t).any():
                report = self.strategy.train(examples.of_events(self.split.train(t)), epoch)
                losses += (report.loss or 0.0) * report.events
                learned += report.events
                discarded += report.discarded
            if self.split.validate(t).any():
                asked = examples.of_events(self.split.validate(t)).only_random()
                validation.append(predict(self.strategy, self.model, None, asked, self.ranks))
        return _figures(validation), losses / max(learned, 1), discarded

    def _test(self) -> Figures:
        found = [
            predict(
                self.strategy,
                self.model,
                self.floor,
                examples.of_events(self.split.test(t)),
                self.ranks,
                window_s=self.protocol.test_span_s,
            )
            for examples, t in self._snapshots(float("inf"), self.config.optimisation.epochs)
            if self.split.test(t).any()
        ]
        return _figures(found)

    def _snapshots(self, until_us: float, epoch: int) -> Iterator[tuple[Examples, NDArray[np.int64]]]:
        """Examples of every snapshot that begins by ``until_us``, and the times of its inserts."""
        own_parts = [
            part for part in range(self.lane.header.parts) if part % self.ranks.size == self.ranks.rank
        ]
        view = WindowView if self.labels is None else UnlabelledWindow
        window = view(self.lane, self.config.window + 1, own_parts)
        history = self.protocol.history()
        for at, manifest in enumerate(self.lane.manifests):
            if manifest.tau * self.lane.header.interval_us > until_us:
                return
            window.advance(manifest)
            self.strategy.advance(window)
            events = window.events(manifest.tau)
            examples = self.protocol.examples(
                manifest.tau,
                events,
                history,
                num_nodes=window.num_nodes,
                owned=self.strategy.owned(window.num_nodes),
                epoch=epoch,
                lesson=self.strategy.lesson(manifest.tau, insert_events(events)),
            )
            yield examples, examples.inserts.visible_us
            self.progress.at(epoch, at)

    def _agree(self, figures: Figures, metric: str) -> float:
        """Rank 0's figure, on every rank; ``NONE`` where there is none."""
        own = figures.get((metric, "all", "model"), NONE) if self.ranks.rank == 0 else 0.0
        return self.ranks.total([own])[0]


def _stored(
    path: str, lane: LaneReader, inserts: Inserts, split: Split, seed: int, ranks: Ranks
) -> StoredNegatives:
    """The negatives of a file, which rank 0 makes first where it is missing; a collective."""
    refused = ""
    if ranks.rank == 0 and not Path(path).exists():
        try:
            drawn = OfflineProtocol(lane, inserts, split, seed).every_snapshot()
            write_negatives(path, lane, inserts, split, drawn, {"seed": seed, "events": len(inserts)})
            log.info("negatives written", file=path, seed=seed)
        except OSError as error:
            refused = f"--negatives {path} cannot be written: {error}"
    refused = ranks.text_from_first(refused).strip()
    if refused:
        raise Failure(refused)
    return StoredNegatives(path, lane, inserts, split)


def _foreign(path: str, found: Predictions, lane: LaneReader, inserts: Inserts) -> dict[str, Any]:
    figures = found.figures()
    return {
        "model": Path(path).stem,
        "strategy": "scores",
        **{name: figures[key] for name, key in TABLE.items() if key in figures},
        "scored": len(found.positive),
        "snapshots": len(lane.manifests),
        "events": len(inserts),
    }


def _figures(parts: list[Predictions | None]) -> Figures:
    found = [part for part in parts if part is not None]
    return join(found).figures() if found else {}


def _summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    summary = {}
    for key in (*TABLE, *NODE_FIGURES, "discarded", "epoch_s", "peak_mib"):
        values = [run[key] for run in runs if key in run]
        if values:
            summary[key] = max(values) if key == "peak_mib" else float(np.mean(values))
        if len(values) > 1 and key in (*TABLE, *NODE_FIGURES):
            summary[f"{key}_spread"] = float(np.std(values, ddof=1))
    return summary


def _peak_mib() -> float:
    """Peak resident memory of this rank, on CUDA the peak of its device memory, in MiB."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
