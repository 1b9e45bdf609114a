"""``freshet-trainer warm``: compile all kernels of training ahead of the first start."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from freshet_graph.stream.compiled import compiling
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import Debug, Json, finish, print_json, print_table
from freshet_graph.stream.service.progress import steps

SPAN_S, SNAPSHOTS, EVENTS, NODES, FEATURES = 40, 4, 2400, 1500, 4
"""Enough that tables grow."""


def warm(json: Json = False, debug: Debug = False) -> None:
    """Compile and keep the kernels of all models, strategies and schedules that a live run uses.

    This takes a minute the first time, then seconds. freshet-stream warm compiles the stream's kernels.

    Example: freshet-trainer warm
    """

    def body() -> None:
        configure_logs(level="ERROR", as_json=False)
        began = time.monotonic()
        with compiling() as compiled, steps("kernels of the trainer: {} of {} ({})") as reached:
            _sessions(reached)
            _schedules()
        result = {"compiled": len(compiled), "seconds": time.monotonic() - began}
        print_json(result) if json else print_table("kernels of the trainer", result)

    finish(body, debug=debug)


def _sessions(reached: Callable[..., None]) -> None:
    """Train every model for a few snapshots, use every strategy, and train the model that samples by the one that does.

    No kernel belongs to another pair only.
    """
    import pyarrow.parquet as pq

    from freshet_graph.schemas.config import Lane
    from freshet_graph.schemas.events import US_PER_S
    from freshet_graph.stream.service.scratch import scratch_folder
    from freshet_graph.stream.store.from_file import build_store
    from freshet_graph.stream.synthetic import interactions
    from freshet_graph.trainer.models.interface import MODELS
    from freshet_graph.trainer.strategies.interface import strategies_for

    with scratch_folder("warm") as folder:
        store, file = folder / "store", folder / "events.parquet"
        pq.write_table(
            interactions(NODES, EVENTS, features=FEATURES, start_s=0.0, span_s=float(SPAN_S)), file
        )
        lane = Lane(name="hash", algorithm="hash", parts=2)
        build_store(file, str(store), interval_us=SPAN_S * US_PER_S // SNAPSHOTS, lanes=[lane])
        used: set[str] = set()
        pairs = []
        for model in sorted(MODELS.all()):
            able = strategies_for(model)
            pairs += [(model, name) for name in able if name not in used] or [(model, able[-1])]
            used.update(able)
        pairs.append(("sage-linear", "vertex"))
        for number, (model, strategy) in enumerate(pairs):
            reached(number + 1, len(pairs), f"{model} by {strategy}")
            event = MODELS.find(model).kind == "event"
            _train(store, folder / str(number), model, strategy, event)


def _schedules() -> None:
    """Schedule a few snapshot groups by every algorithm."""
    import numpy as np

    from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import Problem
    from freshet_graph.trainer.strategies.dygnex.scheduling.solve import ALGORITHMS, solve

    for algorithm in ALGORITHMS:
        solve(Problem(np.arange(1.0, 8.0), 2), algorithm, window=2)


def _train(store: Path, checkpoint: Path, model: str, strategy: str, event: bool) -> None:
    """Do all that a live run does: baselines, exports, checkpoints and, with event models, forgetting and replay."""
    from freshet_graph.schemas.trainer_config import TrainerConfig
    from freshet_graph.stream.store.as_of import AsOf
    from freshet_graph.trainer.service import train
    from freshet_graph.trainer.strategies.interface import STRATEGIES

    replays = STRATEGIES.find(strategy).replays
    again: dict[str, Any] = {"replay": {"ratio": 0.5, "batches": 4}} if replays else {}
    config = TrainerConfig.model_validate(
        {
            "store": str(store),
            "lane": "hash",
            "model": model,
            "strategy": strategy,
            "window": 2,
            "checkpoint": str(checkpoint),
            "device": "cpu",
            "optimisation": {"batch_size": 200, **again},
            **({"budget": {"nodes": NODES // 2}} if event else {}),
            "exports": {"embeddings": True, "scores": True},
            "metrics": {"port": 0},
        }
    )
    for moment in (AsOf(tau=SNAPSHOTS // 2), None):  # the second run resumes from the checkpoint of the first
        train(config, until_idle_s=0.0, began=time.time(), as_of=moment)
