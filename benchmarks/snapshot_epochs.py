"""An epoch of every snapshot model under strategy ``whole``: python benchmarks/snapshot_epochs.py [--device cuda].

Made-up events with hubs among 20,000 nodes, 100,000 in each of nine snapshots. The lane is followed up to the last one,
which is then learned again and again from the eight before. An epoch is all that ``learn`` does: horizon, forward and
backward pass, step. Medians of seconds on the wall.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from timeline import table

from schemas.config import Lane
from schemas.events import event_schema
from schemas.trainer_config import Optimisation, TrainerConfig
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.models.interface import MODELS
from trainer.ranks import Ranks
from trainer.session.session import Session

INTERVAL_US = 1_000_000
TITLES = "an epoch of `whole` | s | MiB"


def snapshot_models() -> list[str]:
    return sorted(name for name, made in MODELS.all().items() if getattr(made, "kind", "") == "snapshot")


def store_of(folder: Path, src: np.ndarray, dst: np.ndarray, t: np.ndarray, **more: object) -> None:
    """A store of inserts in order of time, t in microseconds."""
    known = {"op": np.ones(len(src), np.int8), "src": src, "dst": dst, "t": t, "weight": np.ones(len(src))}
    columns = [
        pa.array(known[field.name]).cast(field.type) if field.name in known
        else pa.nulls(len(src), field.type)
        for field in event_schema("int")
    ]  # fmt: skip
    build_store(pa.table(columns, schema=event_schema("int")), folder, **more)  # type: ignore[arg-type]


def made_up(*, nodes: int, a_snapshot: int, snapshots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sources, destinations and times, in microseconds; hubs are destinations of small numbers."""
    rng, events = np.random.default_rng(0), a_snapshot * snapshots
    src = rng.integers(0, nodes, events)
    dst = (nodes * rng.random(events) ** 2).astype(np.int64)
    return src, dst, np.sort(rng.integers(0, snapshots * INTERVAL_US, events))


def make_store(folder: Path, *, nodes: int, a_snapshot: int, snapshots: int) -> None:
    src, dst, t = made_up(nodes=nodes, a_snapshot=a_snapshot, snapshots=snapshots)
    lanes = [Lane(name="hash", algorithm="hash", parts=1, edge_life=2)]
    store_of(folder, src, dst, t, interval_us=INTERVAL_US, lanes=lanes)


def follow(store: Path, model: str, ranks: Ranks, *, window: int) -> Session:
    """A session whose newest snapshot is the lane's last."""
    lane = LaneReader(store, "hash")
    config = TrainerConfig(
        lane="hash", model=model, strategy="whole", window=window, optimisation=Optimisation()
    )
    session = Session(config, lane, ranks)
    for number in range(len(lane.manifests)):
        session.advance(lane.manifests[number])
    return session


def epochs(device: str, *, small: bool, repeat: int = 5) -> Iterator[list[str]]:
    """Rows: model, median seconds of an epoch, and of the device's memory the peak."""
    with tempfile.TemporaryDirectory(prefix="freshet-epochs-") as folder:
        store, window = Path(folder) / "store", 2 if small else 8
        nodes, a_snapshot = (100, 300) if small else (20_000, 100_000)
        make_store(store, nodes=nodes, a_snapshot=a_snapshot, snapshots=window + 1)
        for name in snapshot_models():
            ranks = Ranks.from_environment(device)
            session = follow(store, name, ranks, window=window)
            examples = session.task.examples(session.view, session.strategy)
            session.strategy.learn([examples], 0)  # compiles, and sends the horizon
            on_gpu = ranks.device.type == "cuda"
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            taken = []
            for epoch in range(1, repeat + 1):
                began = time.perf_counter()
                session.strategy.learn([examples], epoch)  # has the losses on the host when it returns
                taken.append(time.perf_counter() - began)
            peak = f"{torch.cuda.max_memory_allocated() / 2**20:.0f}" if on_gpu else "–"
            yield [f"`{name}`", f"{statistics.median(taken):.4f}", peak]
            session.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--small", action="store_true", help="a few events: whether the script works")
    given = parser.parse_args()
    table(TITLES, list(epochs(given.device, small=given.small)))


if __name__ == "__main__":
    main()
