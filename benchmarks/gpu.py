"""Whether trainers run on a GPU as they do on the CPU, and how fast: python benchmarks/gpu.py.

Within ten minutes on a machine with CUDA it prints three tables with the hardware. Every strategy learns two snapshots of
made-up events on one GPU and, where there are two, on two by NCCL, and predicts three; ``whole`` does so with every
snapshot model. Then ``tgn`` and ``tgn-history`` are timed beside PyG's building blocks (``pip install torch_geometric``;
without it their rows are left out). Columns:

- *scores differ*: the largest difference of a logit from that of the CPU, which learned and predicted the same; dropout
  is off. At most 0.0001, or the command ends with 1;
- *waits a step*: operations of a training step for which the host waits for the GPU, as torch's sync debug mode counts
  them; below the table, where they are;
- *ms a step*, *of it kernels*: of training the second snapshot, on the wall, and what torch's profiler saw on the GPU;
- *events/s*: of training, on the wall;
- *MiB*: most memory that torch held on the GPU (of ranks, the largest).

A second table has the epochs of every snapshot model under ``whole`` over a horizon of 800,000 events: seconds, and
most memory that torch held. A third has the ways to tell a snapshot of a timeline to the GPU, beside coordinates with
values from page-locked memory: milliseconds until its compressed graph is there, and MB.

Without CUDA it says so and ends with 0. ``--device cpu --small`` tries the script itself.
"""

import argparse
import json
import math
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from event_training import Interactions, Ours, Peer
from snapshot_epochs import TITLES, epochs, snapshot_models, store_of
from timeline import table, transfers
from torch import nn

from schemas.config import Lane
from schemas.trainer_config import Optimisation, TrainerConfig
from stream.store.lane.reader import LaneReader
from trainer.ranks import Ranks
from trainer.session.session import Session
from trainer.tasks.link_prediction import predict

AGREE = 1e-4
KINDS = [
    ("vertex", "sage-linear", "hash", (1, 2)),
    ("sequential", "tgn-history", "sep", (1,)),
    ("pac", "tgn-history", "sep", (1, 2)),
    *(("whole", name, "hash", (1,)) for name in snapshot_models()),
]
"""Strategies, the models and lanes that they learn, and numbers of ranks."""
SOURCES, DESTINATIONS = 1000, 200
SNAPSHOTS, SNAPSHOT_S = 3, 3600
ROOT = Path(__file__).resolve().parents[1]


def interactions(events: int) -> Interactions:
    """Made-up ones: every source has a few destinations that it comes back to."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, SOURCES, events)
    dst = SOURCES + (src * 7 + rng.geometric(0.3, events)) % DESTINATIONS
    t = np.sort(rng.integers(0, SNAPSHOTS * SNAPSHOT_S, events))
    return src, dst, t, SOURCES + rng.integers(0, DESTINATIONS, events)


def make_store(folder: Path, events: int) -> None:
    src, dst, t, _ = interactions(events)
    lanes = [Lane(name=name, algorithm=name, parts=2) for name in ("hash", "sep")]
    store_of(folder, src, dst, t * 1_000_000, interval_us=SNAPSHOT_S * 1_000_000, lanes=lanes)


@contextmanager
def waits(device: torch.device, found: Counter[str]) -> Iterator[None]:
    """Count what the host waits for, by the place in our code."""
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


def settled(device: torch.device) -> float:
    """Seconds, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def learn(spec: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Two snapshots learned, three predicted; of the second one's training what ``watch`` looks at."""
    lane, watch = LaneReader(spec["store"], spec["lane"]), spec["watch"]
    config = TrainerConfig(
        lane=spec["lane"],
        model=spec["model"],
        strategy=spec["strategy"],
        window=2,
        optimisation=Optimisation(batch_size=spec["batch"]),
    )
    session = Session(config, lane, ranks)
    model, strategy = session.model, session.strategy
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    found: dict[str, Any] = {"scores": []}
    places: Counter[str] = Counter()
    if ranks.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for sequence, manifest in enumerate(lane.manifests[number] for number in range(SNAPSHOTS)):
        session.advance(manifest)
        lesson = session.task.lesson(session.view, strategy)
        predicted = predict(strategy, model, None, lesson.only_random(), ranks)
        if predicted is not None:
            found["scores"] += [predicted.positive[:, 0].tolist(), predicted.negative[:, 0].tolist()]
        if sequence == SNAPSHOTS - 1:
            break
        second = sequence == 1
        began = settled(ranks.device)
        if second and watch == "kernels":
            with torch.profiler.profile(activities=_activities(ranks.device)) as profile:
                report = strategy.learn([lesson], 0)
            found["kernels_s"] = _kernels_us(profile) / 1e6
        elif second and watch == "waits":
            with waits(ranks.device, places):
                report = strategy.learn([lesson], 0)
        else:
            report = strategy.learn([lesson], 0)
        found |= {"seconds": settled(ranks.device) - began, "steps": report.steps, "events": report.events}
    found["places"] = dict(places)
    found["peak"] = torch.cuda.max_memory_allocated() if ranks.device.type == "cuda" else 0
    (found["peak"],) = ranks.maximum([found["peak"]])
    return found


def _activities(device: torch.device) -> list[Any]:
    kinds = torch.profiler.ProfilerActivity
    return [kinds.CPU, kinds.CUDA] if device.type == "cuda" else [kinds.CPU]


def _kernels_us(profile: Any) -> float:
    """Time of kernels and copies on the GPU; 0 without one."""
    of_device = [each for each in profile.key_averages() if "CUDA" in str(each.device_type)]
    return sum(each.self_device_time_total for each in of_device)


def started(spec: dict[str, Any]) -> dict[str, Any]:
    """What ``learn`` finds with so many ranks: one in this process, several in processes of their own."""
    if spec["ranks"] == 1:
        return learn(spec, Ranks.from_environment(spec["device"]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = spec["ranks"]
    shared = {
        **os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    out = Path(spec["store"]).parent / "rank0.json"
    command = [sys.executable, __file__, "--rank-of", json.dumps({**spec, "out": str(out)})]
    processes = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(size)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"a rank of {spec} failed")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def as_rank(spec: dict[str, Any]) -> None:
    ranks = Ranks.from_environment(spec["device"])
    found = learn(spec, ranks)
    if ranks.rank == 0:
        Path(spec["out"]).write_text(json.dumps(found))
    ranks.close()


def difference(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """The largest; NaN if one side has a number where the other has none, or more of them."""
    if [len(each) for each in ours] != [len(each) for each in theirs]:
        return math.nan
    return float(max(np.abs(np.subtract(a, b)).max(initial=0) for a, b in zip(ours, theirs, strict=True)))


def strategies(
    store: Path, device: str, most: int, batch: int
) -> Iterator[tuple[list[str], Counter[str], bool]]:
    """A row of the table for every strategy and number of ranks, where the host waits, and whether scores agree."""
    for kind, name, lane, sizes in KINDS:
        for size in (size for size in sizes if size <= most):
            spec = {
                "store": str(store), "strategy": kind, "model": name, "lane": lane, "ranks": size, "batch": batch,
                "device": device,
            }  # fmt: skip
            on_gpu = device == "cuda"
            host = started({**spec, "device": "cpu", "watch": "clock"})
            seen = started({**spec, "watch": "waits"}) if on_gpu or size == 1 else host
            timed, traced = (
                started({**spec, "watch": what}) if on_gpu else host for what in ("clock", "kernels")
            )
            apart = difference(seen["scores"], host["scores"])
            places, steps = Counter(seen["places"]), seen["steps"]
            yield (
                [
                    f"`{kind}`, `{name}`, batch {batch}", str(size), f"{apart:.1e}",
                    f"{sum(places.values()) / steps:.2f}" if on_gpu else "–",
                    f"{1000 * timed['seconds'] / timed['steps']:.2f}",
                    f"{1000 * traced['kernels_s'] / traced['steps']:.2f}" if on_gpu else "–",
                    f"{timed['events'] / timed['seconds']:.0f}",
                    f"{seen['peak'] / 2**20:.0f}" if on_gpu else "–",
                ],
                places,
                apart <= AGREE,
            )  # fmt: skip


def side_by_side(device: torch.device, events: int, batches: tuple[int, ...]) -> Iterator[list[str]]:
    """Rows of event models and of PyG's building blocks: events/s of the second half of some events."""
    data = interactions(events)
    for batch in batches:
        for name in ("tgn", "tgn-history", *(["torch_geometric"] if _has_peer() else [])):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            peer = name == "torch_geometric"
            train = Peer(data, 0, device).train if peer else _ours(data, name, batch, device)
            half = events // 2 // batch * batch
            train(0, half, batch)
            began = settled(device)
            train(half, 2 * half, batch)
            seconds = settled(device) - began
            peak = f"{torch.cuda.max_memory_allocated() / 2**20:.0f}" if device.type == "cuda" else "–"
            step = f"{1000 * seconds / (half / batch):.2f}"
            yield [f"`{name}`, batch {batch}", "1", "–", "–", step, "–", f"{half / seconds:.0f}", peak]


def _ours(data: Interactions, name: str, batch: int, device: torch.device) -> Callable[[int, int, int], None]:
    ours = Ours(data, {}, "float32", 0, name=name, device=device)
    ours.start(batch)
    return ours.train


def _has_peer() -> bool:
    try:
        import torch_geometric  # noqa: F401
    except ImportError:
        return False
    return True


def hardware(device: str) -> str:
    host = f"{os.cpu_count()} cores ({platform.processor() or platform.machine()})"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    if device != "cuda":
        return f"{host}, no GPU, {versions}"
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    gpus = ", ".join(f"{each.name} ({each.total_memory / 2**30:.0f} GiB)" for each in properties)
    return f"{gpus}, {host}, {versions}, CUDA {torch.version.cuda}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--ranks", type=int, help="at most; default: as many as there are GPUs, one on the CPU"
    )
    parser.add_argument("--small", action="store_true", help="a few events: whether the script works")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        as_rank(json.loads(given.rank_of))
        return
    gpus = torch.cuda.device_count()
    if given.device == "cuda" and not gpus:
        print(
            "torch finds no CUDA device here, so nothing is measured. --device cpu --small tries the script."
        )
        return
    events, batch, batches = (360, 30, (30,)) if given.small else (24_000, 200, (200, 2000))
    rows, places, agreed = [], Counter[str](), True
    with tempfile.TemporaryDirectory(prefix="freshet-gpu-") as folder:
        store = Path(folder) / "store"
        make_store(store, events)
        most = given.ranks or (gpus if given.device == "cuda" else 1)
        for row, waited, agrees in strategies(store, given.device, most, batch):
            rows.append(row)
            places += waited
            agreed &= agrees
    rows += side_by_side(torch.device(given.device), events, batches)
    print(hardware(given.device), end="\n\n")
    titles = "what | ranks | scores differ | waits a step | ms a step | of it kernels | events/s | MiB"
    print(f"| {titles} |", "|" + "---|" * len(rows[0]), *(f"| {' | '.join(row)} |" for row in rows), sep="\n")
    table(TITLES, list(epochs(given.device, small=given.small)))
    table(
        "a snapshot of 10 intervals as | ms | MB | times faster than int64 COO",
        list(transfers(torch.device(given.device), small=given.small)),
    )
    if not _has_peer():
        print("\ntorch_geometric is not installed, so nothing is compared with it.")
    for place, count in places.most_common():
        print(f"\nThe host waited {count} times at {place}.")
    if not agreed:
        sys.exit(f"\nScores differ by more than {AGREE} from the CPU's.")


if __name__ == "__main__":
    main()
