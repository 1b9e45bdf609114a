"""Collectives of a rank in a live run: python benchmarks/collectives.py [--ranks 1 2 4] [MODEL:STRATEGY[:KEY=VALUE] …].

A store is learned as ``freshet-trainer run`` learns it: each rank is a process with a ``Trainer``, which follows the lane,
predicts every snapshot, learns it, and writes scores and checkpoints. Snapshots have 2,000 events, as in live_rate.py, and
the first fifth of them is left out. Collectives are counted where ranks meet, at the link, so the counts are the same at any
load, except those of checkpoints, which are due by time. The lane has as many parts as the largest number of ranks.
Columns, per snapshot and rank, the mean of ranks:

- *collectives*: all of them, then all-reduces, all-to-alls and broadcasts;
- *waits*: how often the rank stops for others. Collectives under way at the same time are one wait;
- *KiB*: payload sent to other ranks;
- *CPU s*: of the rank's process with all threads, the median snapshot and the mean of ranks;
- *work s*: the same without the processor time of the main thread inside collectives.

``--places`` adds the collectives of rank 0 of two by the line that begins them; gradients begin the way back of rows.
``--latency`` measures an all-reduce of one number between processes instead.
"""

import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from live_rate import LANE, LEFT_OUT, evened, processor
from timeline import table

ROWS = ("tgn-history:pac", "sage-linear:vertex:fetch=owner", "sage-linear:vertex", "tgcn:snapshot")
ROOT = Path(__file__).resolve().parents[1]
KINDS = ("all_reduce", "all_to_all", "broadcast")
WARM, TIMES = 200, 2000
"""Of all-reduces whose latency is measured."""


class CountingLink:
    """A link that counts the collectives that begin on it, by kind and place, and the waits.

    Args:
        link: The counted one.
    """

    def __init__(self, link: Any) -> None:
        self._link, self.rank, self.size, self.now = link, link.rank, link.size, link.now
        self.begun: Counter[tuple[str, str]] = Counter()
        self.waits = 0
        self.cpu_s = 0.0
        """Processor seconds of the calling thread inside collectives."""
        self._new = False  # whether a collective began since the last wait

    def all_reduce(self, *arguments: Any) -> "_Counted":
        return self._begin("all_reduce", self._link.all_reduce, *arguments)

    def all_to_all(self, *arguments: Any) -> "_Counted":
        return self._begin("all_to_all", self._link.all_to_all, *arguments)

    def broadcast(self, *arguments: Any) -> "_Counted":
        return self._begin("broadcast", self._link.broadcast, *arguments)

    def within(self, groups: Sequence[Sequence[int]]) -> "CountingLink":
        made = CountingLink(self._link.within(groups))
        made.begun = self.begun
        return made

    def _begin(self, kind: str, begin: Callable[..., Any], *arguments: Any) -> "_Counted":
        self.begun[kind, place(sys._getframe(2))] += 1
        self._new = True
        with self._spent():
            return _Counted(self, begin(*arguments))

    def wait(self, pending: Any) -> None:
        self.waits, self._new = self.waits + self._new, False
        with self._spent():
            pending.wait()

    @contextmanager
    def _spent(self) -> Iterator[None]:
        began = time.thread_time()
        yield
        self.cpu_s += time.thread_time() - began


class _Counted:
    def __init__(self, link: CountingLink, pending: Any) -> None:
        self._link, self._pending = link, pending

    def wait(self) -> None:
        self._link.wait(self._pending)


def place(frame: FrameType | None) -> str:
    """The line of the trainer that begins a collective, outside the collectives themselves."""
    way_back = ""
    while frame is not None:
        code = frame.f_code
        file = Path(code.co_filename)
        if code.co_name == "turn_back":
            way_back = ", way back"
        if file.is_relative_to(ROOT / "trainer"):
            name = file.relative_to(ROOT / "trainer").as_posix()
            if name != "ranks.py" and not name.startswith("wire/") and name != "strategies/request.py":
                return f"{name} {code.co_name}{way_back}"
        frame = frame.f_back
    return "?"


def work(store: Path, keys: dict[str, Any], out: Path) -> None:
    """As one rank: follow a store to its end."""
    import torch

    from schemas.trainer_config import TrainerConfig
    from stream.store.lane.reader import LaneReader
    from trainer.continual.daemon import Trainer
    from trainer.continual.follower import Follower
    from trainer.metrics import TrainerMetrics
    from trainer.session.session import join_ranks

    config = TrainerConfig(
        store=str(store), lane=LANE.name, threads=1, checkpoint=str(out / "checkpoints"), **keys
    )
    ranks = join_ranks(config)
    torch.set_num_threads(1)
    link = CountingLink(ranks._link)
    ranks._link = link
    lane = LaneReader(store, LANE.name)
    trainer = Trainer(config, lane, ranks, TrainerMetrics(config, ranks.rank))
    follower = Follower(ranks, until_idle_s=0, stop=lambda: False, waiting=lambda *_: None)
    snapshots: list[dict[str, Any]] = []
    while True:
        before, began = {**link.begun}, (link.waits, ranks.traffic.copy(), time.process_time(), link.cpu_s)
        manifest = follower.next(lane, trainer.sequence, trainer.load)
        if manifest is None:
            break
        trainer.step(manifest)
        begun = Counter(link.begun)
        begun.subtract(before)
        waits, traffic, cpu_s, inside_s = began
        snapshots.append(
            {
                "begun": [[*of, count] for of, count in sorted(begun.items()) if count],
                "waits": link.waits - waits,
                "sent_bytes": sum(ranks.traffic.since(traffic).sent_bytes.values()),
                "cpu_s": time.process_time() - cpu_s,
                "inside_s": link.cpu_s - inside_s,
            }
        )
    (out / f"{ranks.rank}.json").write_text(json.dumps(snapshots[int(LEFT_OUT * len(snapshots)) :]))
    ranks.close()


def latency(out: Path) -> None:
    """As one rank: seconds of an all-reduce of one number, on the wall and of the processor."""
    from trainer.ranks import Ranks

    ranks = Ranks.from_environment("cpu", threads=1)
    for _ in range(WARM):
        ranks.total([1.0])
    took, began_cpu = [], time.process_time()
    for _ in range(TIMES):
        began = time.perf_counter()
        ranks.total([1.0])
        took.append(time.perf_counter() - began)
    cpu_s = (time.process_time() - began_cpu) / TIMES
    (out / f"{ranks.rank}.json").write_text(json.dumps([sorted(took), cpu_s]))
    ranks.close()


def start(arguments: list[str], ranks: int) -> None:
    """This script on so many ranks."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {
        **os.environ, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=shared if ranks == 1 else {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    told = [each.communicate()[1] for each in processes]
    for process, error in zip(processes, told, strict=True):
        if process.returncode:
            sys.exit(error.decode()[-3000:])


def measured(folder: Path, row: str, ranks: int, keys: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The counts of each rank, snapshot by snapshot."""
    model, strategy, *params = row.split(":")
    out = Path(tempfile.mkdtemp(dir=folder))
    own = dict(each.split("=") for each in params)
    configured = {"model": model, "strategy": strategy, "strategy_params": own, **keys}
    start(["--rank-of", json.dumps(configured), "--store", str(folder / "store"), "--keep", str(out)], ranks)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


def cells(found: list[list[dict[str, Any]]]) -> list[str]:
    """Columns of a row."""
    every = [snapshot for rank in found for snapshot in rank]
    by_kind: Counter[str] = Counter()
    for snapshot in every:
        for kind, _, count in snapshot["begun"]:
            by_kind[kind] += count
    cpu = [statistics.median(each["cpu_s"] for each in rank) for rank in found]
    inner = [statistics.median(each["cpu_s"] - each["inside_s"] for each in rank) for rank in found]
    return [
        f"{sum(by_kind.values()) / len(every):.1f}",
        *(f"{by_kind[kind] / len(every):.1f}" for kind in KINDS),
        f"{sum(each['waits'] for each in every) / len(every):.1f}",
        f"{sum(each['sent_bytes'] for each in every) / len(every) / 1024:,.1f}",
        f"{statistics.mean(cpu):.3f}",
        f"{statistics.mean(inner):.3f}",
    ]


def places(found: list[list[dict[str, Any]]]) -> list[list[str]]:
    """Collectives of rank 0 per snapshot, by kind and place, most first."""
    by_place: Counter[tuple[str, str]] = Counter()
    for snapshot in found[0]:
        for kind, where, count in snapshot["begun"]:
            by_place[where, kind] += count
    return [
        [where, kind.replace("_", "-"), f"{count / len(found[0]):.1f}"]
        for (where, kind), count in by_place.most_common()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", default=ROWS, metavar="MODEL:STRATEGY[:KEY=VALUE]")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/collegemsg.parquet")
    parser.add_argument("--events", type=int, default=2_000, help="of a snapshot")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--keys", type=json.loads, default={}, help="more of the configuration, JSON")
    parser.add_argument("--places", action="store_true")
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank-of", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of is not None:
        latency(given.keep) if given.latency else work(given.store, given.rank_of, given.keep)
        return
    print(f"{processor()}, {os.cpu_count()} cores, {datetime.datetime.now(datetime.UTC).date()}")
    with tempfile.TemporaryDirectory(prefix="freshet-collectives-") as name:
        folder = Path(name)
        if given.latency:
            rows = []
            for ranks in (each for each in given.ranks if each > 1):
                start(["--latency", "--rank-of", "{}", "--keep", str(folder)], ranks)
                took, cpu_s = json.loads((folder / "0.json").read_text())
                tenth, median = (took[len(took) * part // 10] for part in (1, 5))
                rows.append([str(ranks), *(f"{1e6 * each:.0f}" for each in (tenth, median, cpu_s))])
            table("ranks | µs, fastest tenth | µs, median | CPU µs per rank", rows)
            return
        from schemas.config import Lane
        from stream.decode.files import read_events
        from stream.store.from_file import build_store

        source, interval_us = evened(read_events(given.data), given.events)
        lane = Lane(name=LANE.name, algorithm=LANE.algorithm, parts=max(given.ranks))
        build_store(source, folder / "store", interval_us=interval_us, lanes=[lane])
        rows, where = [], []
        for row in given.rows:
            for ranks in given.ranks:
                found = measured(folder, row, ranks, given.keys)
                model, *strategy = row.split(":")
                rows.append([f"`{model}`", f"`{': '.join(strategy)}`", str(ranks), *cells(found)])
                print(rows[-1], file=sys.stderr, flush=True)
                if ranks == 2:
                    where.append((row, places(found)))
        kinds = " | ".join(kind.replace("_", "-") for kind in KINDS)
        table(f"model | strategy | ranks | collectives | {kinds} | waits | KiB | CPU s | work s", rows)
        for row, found_at in where if given.places else []:
            print(f"\n`{row}`, two ranks, collectives of rank 0 per snapshot:")
            table("place | kind | number", found_at)


if __name__ == "__main__":
    main()
