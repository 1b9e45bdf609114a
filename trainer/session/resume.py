"""The newest checkpoint, checked against configuration and lane before it is used."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from schemas.errors import one_line
from schemas.trainer_config import Target, TrainerConfig
from stream.service.failure import Failure
from stream.store.lane.reader import LaneReader
from trainer.session.checkpoint import Checkpoints

BEFORE_THERE_WAS_A_CHOICE = {"history_moment": "batch", "task": "link-prediction", "target": None}
"""Values of keys that older checkpoints do not name."""


def identity(config: TrainerConfig, lane: LaneReader) -> dict[str, Any]:
    """The settings that must not change between a checkpoint and its continuation."""
    return {
        "graph": lane.log.header.graph,
        "lane": lane.header.lane,
        "lane_checksum": lane.header.checksum,
        "model": config.model,
        "model_params": json.dumps(config.model_params, sort_keys=True),
        "strategy": config.strategy,
        "strategy_params": json.dumps(config.strategy_params, sort_keys=True),
        "window": config.window,
        "horizon": config.horizon,
        "smoothing": config.smoothing.model_dump_json(),
        "history_moment": config.history_moment,
        "task": config.task,
        "target": None if config.target in (None, Target()) else config.target.model_dump_json(),
        "seed": config.seed,
    }


def newest_checkpoint(config: TrainerConfig, lane: LaneReader) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint of the configured folder; None without one.

    Raises:
        Failure: It is damaged, or of another configuration, lane or log; the sentence names the key.
    """
    found = Checkpoints(config.checkpoint, config.keep_checkpoints).newest()
    if found is None:
        return None
    path, state = found
    configured = identity(config, lane)
    with content_of(path):
        sequence, checksum = int(state["sequence"]), state["log_events_checksum"]
        made_with = dict(state.get("identity", {}))
    unsaid = {key: configured[key] for key in ("graph", "horizon", "smoothing")}  # by older checkpoints
    made_with = {**BEFORE_THERE_WAS_A_CHOICE, **unsaid, **made_with}
    for key, value in configured.items():
        if made_with.get(key) == value:
            continue
        if key == "graph":
            raise Failure(
                f"checkpoint {path} was made on another store, of graph {made_with[key]}; {config.store} is of graph {value}. "
                "Choose another folder in the key checkpoint"
            )
        if key == "lane_checksum":
            raise Failure(
                f"checkpoint {path} was made on another lane {lane.header.lane}, which {config.store} no longer has: it was "
                "made again, or with other parameters. Choose another folder in the key checkpoint"
            )
        raise Failure(
            f"checkpoint {path} was made with {key} = {made_with.get(key)}, the configuration has "
            f"{value}. Choose another folder in the key checkpoint, or configure the same"
        )
    lane.refresh()
    if sequence >= len(lane.manifests) or lane.manifests[sequence].log_events_checksum != checksum:
        raise Failure(
            f"checkpoint {path} is after snapshot number {sequence}, which lane {lane.header.lane} of "
            f"{config.store} doesn't have with these events. Choose another folder in the key checkpoint"
        )
    return path, state


@contextmanager
def content_of(path: Path) -> Iterator[None]:
    """Turn what is wrong in a checkpoint into a sentence: a key that is missing, or weights of other widths.

    Raises:
        Failure: The block met it.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        what = shorten(f"{type(error).__name__}: {one_line(error)}", 300)
        raise Failure(
            f"checkpoint {path} has other content than this release writes for this model ({what}). Remove it to continue "
            "from the one before, or choose another folder in the key checkpoint"
        ) from error
