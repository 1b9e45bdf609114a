"""What the parts of gpu.py share: made-up events and stores, clocks of a device, memory, and where the host waits.

As a program (python benchmarks/gpu_common.py cuda) it is the first part: versions and hardware, and 1 if the project cannot be
imported or torch finds no such device.
"""

import importlib
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from event_training import Interactions
from harness import ROOT, settled

SOURCES, DESTINATIONS = 1000, 200
SNAPSHOTS, SNAPSHOT_S, INTERVAL_US = 3, 3600, 1_000_000
PACKAGES = (
    "torch", "numpy", "numba", "pyarrow", "torch_geometric", "apache_beam", "confluent_kafka", "kafka",
)  # fmt: skip
DEVICES = {"choices": ["cuda", "cpu"], "default": "cuda"}


def interactions(events: int) -> Interactions:
    """Made-up ones: every source has a few destinations that it comes back to."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, SOURCES, events)
    dst = SOURCES + (src * 7 + rng.geometric(0.3, events)) % DESTINATIONS
    t = np.sort(rng.integers(0, SNAPSHOTS * SNAPSHOT_S, events))
    return src, dst, t, SOURCES + rng.integers(0, DESTINATIONS, events)


def event_store(folder: Path, events: int, parts: int = 2) -> Path:
    """A store of so many events in three snapshots, with lanes of `hash` and `sep`."""
    src, dst, t, _ = interactions(events)
    table = harness.event_table(src=src, dst=dst, t=t * 1_000_000)
    return harness.built(folder, table, SNAPSHOT_S * 1_000_000, harness.lanes("hash", "sep", parts=parts))


def graph_events(nodes: int, a_snapshot: int, snapshots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Made-up sources, destinations and times, in microseconds; hubs are destinations of small numbers."""
    rng, events = np.random.default_rng(0), a_snapshot * snapshots
    src, dst = rng.integers(0, nodes, events), (nodes * rng.random(events) ** 2).astype(np.int64)
    return src, dst, np.sort(rng.integers(0, snapshots * INTERVAL_US, events))


def graph_store(folder: Path, *sizes: int, parts: int = 1) -> Path:
    """A store of made-up snapshots with a lane `hash`; edges live for two of them."""
    src, dst, t = graph_events(*sizes)
    lanes = harness.lanes("hash", parts=parts, edge_life=2)
    return harness.built(folder, harness.event_table(src=src, dst=dst, t=t), INTERVAL_US, lanes)


def seconds_of(work: Callable[[], object], device: torch.device, times: int = 20) -> float:
    """Seconds of some work, the mean of so many times, once it has run thrice."""
    for _ in range(3):
        work()
    began = settled(device)
    for _ in range(times):
        work()
    return (settled(device) - began) / times


def fresh_peak(device: torch.device) -> None:
    """Forget the most memory that torch has held there."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> str:
    """The most since then."""
    return f"{torch.cuda.max_memory_allocated(device) / 2**20:.0f}" if device.type == "cuda" else "–"


@contextmanager
def waits(device: torch.device, found: Counter[str]) -> Iterator[None]:
    """Count what the host waits for, by the place in our code, as torch's sync debug mode shows it."""
    if device.type != "cuda":
        yield
        return

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" not in str(message):
            return
        ours = [frame for frame in traceback.extract_stack() if f"{ROOT}/trainer/" in frame.filename]
        place = ours[-1] if ours else None
        found[f"{Path(place.filename).relative_to(ROOT)}:{place.lineno}" if place else "elsewhere"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def hardware(device: str) -> str:
    """The machine, the card, its driver, and torch's version."""
    if device != "cuda":
        return f"{harness.machine()}, no GPU, torch {torch.__version__}"
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    gpus = ", ".join(f"{each.name} ({each.total_memory / 2**30:.0f} GiB)" for each in properties)
    return f"{gpus}, {harness.machine()}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def main() -> None:
    device = sys.argv[1]
    for name in [*PACKAGES, "freshet_graph.trainer.service", "freshet_graph.trainer.evaluation.evaluate"]:
        try:
            print(name, getattr(importlib.import_module(name), "__version__", "is there"), flush=True)
        except ImportError as error:
            needed = name.startswith("trainer")
            print(f"{'WRONG: ' if needed else ''}{name} is missing: {error}", flush=True)
            if needed:
                sys.exit(1)
    if device == "cuda" and not torch.cuda.is_available():
        print("WRONG: torch finds no CUDA device here. --device cpu --small tries the command")
        sys.exit(1)
    print(hardware(device))


if __name__ == "__main__":
    main()
