"""What the parts of gpu.py share: made-up events, clocks of a device, where the host waits, rows printed one by one.

As a program (python benchmarks/gpu_common.py cuda) it is the first part: versions and hardware, and 1 if the project cannot be
imported or torch finds no such device.
"""

import importlib
import os
import platform
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from event_training import Interactions
from snapshot_epochs import store_of

from schemas.config import Lane

ROOT = Path(__file__).resolve().parents[1]
SOURCES, DESTINATIONS = 1000, 200
SNAPSHOTS, SNAPSHOT_S = 3, 3600


def interactions(events: int) -> Interactions:
    """Made-up ones: every source has a few destinations that it comes back to."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, SOURCES, events)
    dst = SOURCES + (src * 7 + rng.geometric(0.3, events)) % DESTINATIONS
    t = np.sort(rng.integers(0, SNAPSHOTS * SNAPSHOT_S, events))
    return src, dst, t, SOURCES + rng.integers(0, DESTINATIONS, events)


def make_store(folder: Path, events: int, parts: int = 2) -> None:
    """A store of so many events in three snapshots, with lanes of `hash` and `sep`."""
    src, dst, t, _ = interactions(events)
    lanes = [Lane(name=name, algorithm=name, parts=parts) for name in ("hash", "sep")]
    store_of(folder, src, dst, t * 1_000_000, interval_us=SNAPSHOT_S * 1_000_000, lanes=lanes)


def settled(device: torch.device) -> float:
    """Seconds, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


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
    """Count what the host waits for, by the place in our code, as torch's sync debug mode tells it."""
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
    """The processor, the card, its driver, and versions."""
    host = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores ({_processor()})"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    if device != "cuda":
        return f"{host}, no GPU, {versions}"
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    gpus = ", ".join(f"{each.name} ({each.total_memory / 2**30:.0f} GiB)" for each in properties)
    return f"{gpus}, {host}, {versions}, CUDA {torch.version.cuda}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def print_rows(titles: str, rows: Iterable[Sequence[str]]) -> None:
    """A Markdown table, each row when it is known, so that a limit of time loses nothing; an error is a line, and the end."""
    print(f"\n| {titles} |\n|{'---|' * (titles.count('|') + 1)}", flush=True)
    try:
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)
    except Exception as error:  # noqa: BLE001  the other tables are worth having
        traceback.print_exc()
        print(
            f"WRONG: {titles.split(' |', maxsplit=1)[0]}: {type(error).__name__}: {str(error)[:200]}",
            flush=True,
        )


def main() -> None:
    device = sys.argv[1]
    packages = "torch numpy numba pyarrow torch_geometric apache_beam confluent_kafka kafka"
    for name in [*packages.split(), "trainer.service", "trainer.evaluation.evaluate"]:
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
