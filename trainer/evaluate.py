"""Offline evaluation on a file or a store: train, pick by validation, test, as the TGN line of work does."""

import copy
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from schemas.config import Lane
from schemas.events import US_PER_S
from schemas.trainer_config import TrainerConfig
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from stream.store.log.event_columns import event_columns
from stream.store.log.reader import LogReader
from stream.store.store_events import is_store, read_source
from stream.store.window.view import WindowView
from trainer.data.examples import Examples, Sampling, insert_events, prepare
from trainer.data.history import History, Inserts
from trainer.data.split import Split, split_by_time
from trainer.models.interface import ModelShape, create_model
from trainer.ranks import Ranks
from trainer.scoring.predictions import Figures, Predictions, join, predict
from trainer.strategies.interface import create_strategy

log = structlog.get_logger()

RANKED = 2000
"""Test events that are ranked among candidates, about as many in every snapshot: each costs 50 predictions."""

WARMED = 32
"""Events of a snapshot that are used before seconds are counted."""

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
) -> dict[str, Any] | None:
    """Evaluate the configured model on a file of events; a collective.

    The file becomes a store in a temporary folder, with one lane by the algorithm that ``lane`` names. Every epoch
    passes over the training events in log order and then predicts the validation events; the weights of the best
    epoch predict the test events. Negatives are uniform over the file's destinations, those to learn from over the
    training split's.

    Args:
        config: ``interval_s``, ``parts``, ``model``, ``optimisation`` … as for training.
        data: Parquet or CSV; or a store's folder or address, whose events up to ``as_of`` are taken as a file's: late
            ones stand where their time is.
        ranks: All ranks, on one machine.
        shares: Of training, validation and test in time quantiles.
        seeds: Repetitions with seeds ``seed``, ``seed`` + 1 …
        as_of: A moment of the store; None: all that is sealed.

    Returns:
        On rank 0: the keys of docs/cli.md, means over seeds, ``<figure>_spread`` (standard deviation) with more
        than one seed, and ``runs``, one entry a seed. A figure that cannot be computed is absent. Elsewhere None.
    """
    # before a large file is partitioned: what is wrong with the configuration
    create_strategy(config.strategy, config.strategy_params, config.model)
    create_model(config.model, ModelShape(0, config.window), config.model_params)
    folder = ranks.text_from_first(tempfile.mkdtemp(prefix="freshet-evaluate-") if ranks.rank == 0 else "")
    parts = config.parts or ranks.size
    try:
        if not _build(config, data, as_of, folder, parts, ranks):
            return None
        lane = LaneReader(folder, config.lane)
        inserts = _all_inserts(lane)
        split = split_by_time(inserts.visible_us, shares)
        runs = [
            _Run(config, lane, ranks, inserts, split, config.seed + repeat).figures()
            for repeat in range(seeds)
        ]
    finally:
        if ranks.rank == 0:  # mapped files stay readable for ranks that are not yet done
            shutil.rmtree(folder, ignore_errors=True)
    if ranks.rank != 0:
        return None
    if not any("random_ap" in run for run in runs):
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
        inserts: Inserts,
        split: Split,
        seed: int,
    ) -> None:
        self.config = config
        self.lane = lane
        self.ranks = ranks
        self.split = split
        self.seed = seed
        torch.manual_seed(seed)
        shape = ModelShape(lane.header.node_features, config.window, seed, lane.header.edge_features)
        self.strategy = create_strategy(config.strategy, config.strategy_params, config.model)
        self.model = create_model(config.model, shape, config.model_params).to(ranks.device)
        self.floor = copy.deepcopy(self.model)
        self.strategy.setup(self.model, lane.header, ranks, config.optimisation, seed)
        trained = split.train(inserts.visible_us)
        tested = np.unique(inserts.visible_us[split.test(inserts.visible_us)] // lane.header.interval_us)
        self.test_span_s = (int(inserts.visible_us.max()) - split.validate_until_us) / US_PER_S
        """EdgeBank's window is as long as the test, as its authors have it."""
        self.sampling = Sampling(
            seed,
            ranked_events=-(-RANKED // len(tested)),
            pool=np.unique(inserts.dst),
            training_pool=np.unique(inserts.dst[trained]),
        )
        self.trained_nodes = np.unique(np.concatenate([inserts.src[trained], inserts.dst[trained]]))

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
        test = self._test()
        return {
            "seed": self.seed,
            **{name: test[key] for name, key in TABLE.items() if key in test},
            **({} if best == NONE else {"validation_ap": best}),
            "best_epoch": chosen,
            "discarded": sum(discards) / len(discards),
            "epoch_s": sum(seconds) / len(seconds),
            "peak_mib": _peak_mib(),
        }

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
                window_s=self.test_span_s,
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
        window = WindowView(self.lane, self.config.window + 1, own_parts)
        history = History(across=True)
        for manifest in self.lane.manifests:
            if manifest.tau * self.lane.header.interval_us > until_us:
                return
            window.advance(manifest)
            self.strategy.advance(window)
            events = window.events(manifest.tau)
            examples = prepare(
                manifest.tau,
                events,
                history,
                num_nodes=window.num_nodes,
                known=np.isin(np.arange(window.num_nodes), self.trained_nodes),
                owned=self.strategy.owned(window.num_nodes),
                sampling=self.sampling,
                epoch=epoch,
                lesson=self.strategy.lesson(manifest.tau, insert_events(events)),
            )
            yield examples, examples.inserts.visible_us

    def _agree(self, figures: Figures, metric: str) -> float:
        """Rank 0's figure, on every rank; ``NONE`` where there is none."""
        own = figures.get((metric, "all", "model"), NONE) if self.ranks.rank == 0 else 0.0
        return self.ranks.total([own])[0]


def _build(
    config: TrainerConfig, data: str | Path, as_of: str | None, folder: str, parts: int, ranks: Ranks
) -> bool:
    """Make the store on rank 0 while the others wait; False on ranks that wait in vain."""
    lane = Lane(
        name=config.lane,
        algorithm=config.lane,
        parts=parts,
        window=config.window,
        seed=config.seed,
        params=config.lane_params,
    )
    interval_us = round(config.interval_s * US_PER_S) if config.interval_s else None
    error: Exception | None = None
    if ranks.rank == 0:
        try:
            source = read_source(str(data), as_of)
            if interval_us is None and is_store(str(data)):
                interval_us = LogReader(str(data)).header.interval_us
            build_store(source, folder, interval_us=interval_us, lanes=[lane])
        except Exception as caught:  # noqa: BLE001  raised below, after the others know
            error = caught
    (failed,) = ranks.any(error is not None)
    if error is not None:
        raise error
    return not failed


def _all_inserts(lane: LaneReader) -> Inserts:
    parts = [
        insert_events(event_columns(lane.log.events(snapshot.tau), snapshot.tau, lane.header.interval_us, 0))
        for snapshot in lane.log.snapshots
    ]
    empty = np.empty(0, np.int64)
    return Inserts(
        np.concatenate([*(part.src for part in parts), empty]),
        np.concatenate([*(part.dst for part in parts), empty]),
        np.concatenate([*(part.visible_us for part in parts), empty]),
        np.concatenate([*(part.late for part in parts), empty.astype(np.bool_)]),
    )


def _figures(parts: list[Predictions | None]) -> Figures:
    found = [part for part in parts if part is not None]
    return join(found).figures() if found else {}


def _summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    summary = {}
    for key in (*TABLE, "discarded", "epoch_s", "peak_mib"):
        values = [run[key] for run in runs if key in run]
        if values:
            summary[key] = max(values) if key == "peak_mib" else float(np.mean(values))
        if len(values) > 1 and key in TABLE:
            summary[f"{key}_spread"] = float(np.std(values, ddof=1))
    return summary


def _peak_mib() -> float:
    """Peak resident memory of this rank, on CUDA the peak of its device memory, in MiB."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
