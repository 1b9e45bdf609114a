"""One rank of ``freshet-trainer run``: group, endpoint, signals and result around the training loop."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import structlog
import torch

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.schemas.version import version
from freshet_graph.stream.service.endpoint import Endpoint
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.logs import take_over
from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.auto import lane_of
from freshet_graph.trainer.continual.daemon import Trainer, follow
from freshet_graph.trainer.continual.drift import weighted_mean
from freshet_graph.trainer.continual.follower import Follower
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.continual.tracking import Tracking
from freshet_graph.trainer.heartbeats import Heartbeats
from freshet_graph.trainer.launch import STARTED, local_rank, restarts
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import Checkpoints
from freshet_graph.trainer.session.session import join_ranks
from freshet_graph.trainer.shutdown import Shutdown, rank_dies_with_launcher

log = structlog.get_logger()

SCORES = (
    "ap", "auc", "mrr", "hits_at_10", "inductive_ap", "random_ap", "edgebank_ap", "edgebank_window_ap",
    "recency_ap", "recency_popularity_ap",
)  # fmt: skip
OF_A_HOST = ("store", "checkpoint", "metrics", "device", "threads")
"""Keys that may differ between the ranks of a run: where things are on their host."""

OF_TASKS = (
    "auroc", "random_auroc", "activity_auroc", "mse", "random_mse", "zero_mse", "mean_mse", "persistence_mse",
    "age_persistence_mse", "accuracy", "random_accuracy", "majority_accuracy", "last_label_accuracy", "macro_f1",
    "random_macro_f1", "majority_macro_f1", "last_label_macro_f1",
)  # fmt: skip
"""Figures of some tasks; absent under the others."""


def train(
    config: TrainerConfig, *, until_idle_s: float | None, began: float, as_of: AsOf | None = None
) -> dict[str, Any] | None:
    """Train until SIGTERM, until nothing new came for ``until_idle_s``, or up to a moment of the store.

    Args:
        config: The configuration.
        until_idle_s: Seconds; None: no limit.
        began: When the command began, seconds since the epoch.
        as_of: The last snapshot or time to learn; it must be sealed.

    Returns:
        On rank 0 the keys of docs/cli.md over all snapshots since the command began, including those before restarts of
        ranks. Elsewhere None.
    """
    take_over("torch", "torch.distributed")
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.at_once_until_training()
    rank_dies_with_launcher()
    heartbeats = Heartbeats.from_environment()
    ranks = join_ranks(config)
    structlog.contextvars.bind_contextvars(rank=ranks.rank)
    log.info(
        "starting", ranks=ranks.size, version=version(), config=config.digest(), store=config.store,
        lane=config.lane, attempt=restarts(),
    )  # fmt: skip
    _require_one_configuration(config, ranks)
    metrics = TrainerMetrics(config, ranks.rank, ranks=ranks.size, up=heartbeats.up, restarts=restarts())
    progress = _Progress(metrics)
    port = config.metrics.port + local_rank() if config.metrics.port else 0
    endpoint = Endpoint(
        config.metrics.model_copy(update={"port": port}), metrics.registry, lambda: progress.obstacle
    )
    log.info("metrics", url=endpoint.url)
    folder_lock = ExitStack()
    try:
        checkpoints = Checkpoints(config.checkpoint, config.keep_checkpoints)
        ranks.on_first(lambda: folder_lock.enter_context(checkpoints.alone()))
        follower = Follower(
            ranks, until_idle_s=until_idle_s, stop=lambda: shutdown.wanted, waiting=progress.waiting
        )
        assert config.store is not None  # the command has checked
        lane = follower.open_lane(config.store, config.lane, partial(lane_of, config, ranks.size))
        if lane is not None:
            config = config.model_copy(update={"lane": lane.header.lane})
            metrics.graph(lane.header.graph, lane.header.lane)
            log.info(
                "training", ranks=ranks.size, device=str(ranks.device), threads=torch.get_num_threads(), model=config.model,
                strategy=config.strategy, lane=config.lane, graph=lane.header.graph,
            )  # fmt: skip
            if as_of is not None:
                follower.end_after = _number(lane, as_of, ranks)
            trainer = Trainer(config, lane, ranks, metrics)
            if follower.end_after is not None and trainer.sequence > follower.end_after:
                raise Failure(
                    f"the newest checkpoint in {config.checkpoint} is of snapshot number {trainer.sequence}, after number "
                    f"{follower.end_after} of --as-of. Choose another folder in the key checkpoint"
                )
            with ExitStack() as tracked:
                shutdown.training = True
                if config.tracker is not None and ranks.rank == 0:
                    tracked.enter_context(Tracking(config, lane, metrics))
                follow(trainer, follower)
        elif not shutdown.wanted:
            raise Failure(
                f"after {until_idle_s:g} seconds still {progress.obstacle}, or start the stream service with that lane"
            )
        totals = result(config, since=float(os.environ.get(STARTED, began))) if ranks.rank == 0 else None
        log.info("ended", **(totals or {}))
        return totals
    finally:
        heartbeats.close()
        ranks.close()
        endpoint.close()
        folder_lock.close()


def result(config: TrainerConfig, *, since: float) -> dict[str, Any]:
    """Totals and event-weighted means over the snapshots trained since a wall time (seconds since the epoch).

    Figures of a sliding window are the newest ones.
    """
    every = ScoreFile(config.checkpoint).lines()
    lines = [line for line in every if line["wall_time"] >= since]
    return {
        **_chosen(config, every),
        "snapshots": len(lines),
        "steps": sum(line["steps"] for line in lines),
        "events": sum(line["events"] for line in lines),
        "loss": weighted_mean(lines, "loss", "trained"),
        **{key: weighted_mean(lines, key, "scored") for key in SCORES},
        **{key: mean for key in OF_TASKS if (mean := weighted_mean(lines, key, "scored")) is not None},
        "seconds": math.fsum(seconds for line in lines for seconds in line["seconds"].values()),
        "checkpoint": str(Checkpoints(config.checkpoint, 1).newest_path() or "") or None,
        "first_tau": lines[0]["tau"] if lines else None,
        "last_tau": lines[-1]["tau"] if lines else None,
        "total_snapshots": len(every),
        **{key: value for line in every[-1:] for key, value in line.items() if key.startswith("window_")},
        **_cautions(lines),
    }


def _chosen(config: TrainerConfig, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Lane and strategy of the newest line; under ``auto`` also predicted seconds, and why it was chosen."""
    newest = lines[-1] if lines else {}
    reasons = [line["reason"] for line in lines if "reason" in line]
    return {
        "lane": config.lane,
        "strategy": newest.get("strategy", config.strategy),
        **({"predicted_s": newest["predicted_s"]} if "predicted_s" in newest else {}),
        **({"reason": reasons[-1]} if reasons else {}),
    }


def _cautions(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``cautions`` of lines: by figures and label, the number of snapshots with few events of it; empty without any."""
    all_cautions = [caution for line in lines for caution in line.get("cautions", [])]
    counts = Counter((*caution["figures"], caution["label"]) for caution in all_cautions)
    counted = [
        {"figures": figures, "label": label, "snapshots": count}
        for (*figures, label), count in counts.items()
    ]
    return {"cautions": counted} if counted else {}


def _require_one_configuration(config: TrainerConfig, ranks: Ranks) -> None:
    """Check that all ranks have one configuration, except for what may differ from host to host; a collective.

    Raises:
        Failure: They differ (on all ranks).
    """
    if others := ranks.unlike_first(config.model_dump_json(exclude=set(OF_A_HOST))):
        raise Failure(
            f"the configuration of rank {others} is not that of rank 0. Give all ranks the same file; "
            f"only {', '.join(OF_A_HOST)} may differ"
        )


def _number(lane: LaneReader, as_of: AsOf, ranks: Ranks) -> int:
    """Sequence of the last snapshot of a moment, as rank 0 sees the log."""
    return ranks.from_first(lane.log.count(as_of) - 1)


class _Progress:
    """The present obstacle to training, for /readyz, and whether there is nothing to train, for the metric."""

    def __init__(self, metrics: TrainerMetrics) -> None:
        self._metrics = metrics
        self.obstacle: str | None = "starting"

    def waiting(self, reason: str | None, is_obstacle: bool) -> None:
        self.obstacle = reason if is_obstacle else None
        self._metrics.waiting(yes=reason is not None)
