"""Seconds of snapshot groups to schedule: from a file, made up, or from a store's lane."""

import json
import math
from pathlib import Path

import numpy as np

from freshet_graph.stream.arrays.kinds import Float64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.places.place import Place
from freshet_graph.trainer.strategies.dygnex.scheduling.time_model import TimeModel, group_sizes

MADE_UP = ("linear", "lognormal")
_LARGEST_S = 1e12


def read_times(path: Path) -> Float64:
    """Seconds of groups from a file with a JSON list of them.

    Raises:
        Failure: The file is not such a list; the sentence names the first wrong entry.
        OSError: It cannot be read.
    """
    wanted = "Give a JSON list of seconds, one per group"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Failure(f"{path} is not JSON: {error}. {wanted}") from None
    if not isinstance(content, list) or not content:
        raise Failure(f"{path} holds no list of seconds. {wanted}")
    for number, value in enumerate(content):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST_S:
            raise Failure(
                f"{path}, group {number}: seconds must be a number from 0 to {_LARGEST_S:.0e}, found {json.dumps(value)}"
            )
    return np.array(content, np.float64)


def made_up_times(kind: str, groups: int, seed: int) -> Float64:
    """Made-up seconds of groups.

    Args:
        kind: ``linear``: a stream that grows threefold, with 5 % of noise, as under a linear time model; ``lognormal``:
            without order, σ = 0.5.
        groups: Their number.
        seed: The same seed gives the same seconds.
    """
    drawn = np.random.default_rng(seed).normal(size=groups)
    if kind == "lognormal":
        return np.exp(0.5 * drawn)
    return (1 + 2 * np.arange(groups) / groups) * np.maximum(0.1, 1 + 0.05 * drawn)


def stored_times(store: str | Place, lane: str, model: TimeModel, window: int) -> Float64:
    """Seconds of the groups of a store's lane, from live nodes and directed pairs of its manifests, oldest first.

    Args:
        store: Folder or address.
        lane: Its lane.
        model: Seconds by size.
        window: Snapshots of a group.

    Raises:
        StoreError: There is no such store or lane, or it is damaged.
        Failure: The lane has fewer snapshots than a group.
    """
    manifests = LaneReader(store, lane).manifests[:]
    if len(manifests) < window:
        raise Failure(
            f"lane {lane} of {store} has {len(manifests)} snapshots, and a group takes {window}. "
            "Wait for more, or give a smaller --window"
        )
    sizes = group_sizes([m.live_nodes for m in manifests], [m.live_edges for m in manifests], window)
    return model.predict(sizes)


def require_seconds(name: str, value: float) -> None:
    """Check a number of seconds from the command line.

    Raises:
        Failure: It is not a number from 0 to ``_LARGEST_S``.
    """
    if not (math.isfinite(value) and 0 <= value <= _LARGEST_S):
        raise Failure(f"{name} must be a number from 0 to {_LARGEST_S:.0e}, found {value}")
