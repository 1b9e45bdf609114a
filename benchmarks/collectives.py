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

``--keys`` is more of the configuration, JSON. ``--places`` adds the collectives of rank 0 of two by the line that begins them;
gradients begin the way back of rows. ``--latency`` measures an all-reduce of one number between processes instead.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import harness
from live_rate import LANE, LEFT_OUT, evened

ROWS = ["tgn-history:pac", "sage-linear:vertex:fetch=owner", "sage-linear:vertex", "tgcn:snapshot"]
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
    way_back, trainer = "", harness.ROOT / "trainer"
    while frame is not None:
        code = frame.f_code
        file = Path(code.co_filename)
        if code.co_name == "turn_back":
            way_back = ", way back"
        if file.is_relative_to(trainer):
            name = file.relative_to(trainer).as_posix()
            if name != "ranks.py" and not name.startswith("wire/") and name != "strategies/request.py":
                return f"{name} {code.co_name}{way_back}"
        frame = frame.f_back
    return "?"


def work(given: Any) -> None:
    """As one rank: follow a store to its end."""
    from schemas.trainer_config import TrainerConfig
    from stream.store.lane.reader import LaneReader
    from trainer.continual.daemon import Trainer
    from trainer.continual.follower import Follower
    from trainer.metrics import TrainerMetrics
    from trainer.session.session import join_ranks

    own = {
        "store": str(given.store),
        "lane": LANE.name,
        "threads": 1,
        "checkpoint": str(given.out / "checkpoints"),
    }
    config = TrainerConfig.model_validate({**own, **given.rank_of})
    ranks = join_ranks(config)
    link = ranks._link = CountingLink(ranks._link)
    lane = LaneReader(given.store, LANE.name)
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
        snapshots.append({
            "begun": [[*which, count] for which, count in sorted(begun.items()) if count],
            "waits": link.waits - waits,
            "sent_bytes": sum(ranks.traffic.since(traffic).sent_bytes.values()),
            "cpu_s": time.process_time() - cpu_s,
            "inside_s": link.cpu_s - inside_s,
        })  # fmt: skip
    (given.out / f"{ranks.rank}.json").write_text(json.dumps(snapshots[int(LEFT_OUT * len(snapshots)) :]))
    ranks.close()


def latency(out: Path) -> None:
    """As one rank: seconds of an all-reduce of one number, on the wall and of the processor."""
    from trainer.ranks import Ranks

    ranks = Ranks.from_environment("cpu", threads=1)
    for _ in range(WARM):
        ranks.total([1.0])
    began = time.process_time()
    took = sorted(harness.seconds_of(lambda: ranks.total([1.0])) for _ in range(TIMES))
    (out / f"{ranks.rank}.json").write_text(json.dumps([took, (time.process_time() - began) / TIMES]))
    ranks.close()


def latencies(folder: Path, sizes: list[int]) -> Iterator[list[str]]:
    for ranks in (size for size in sizes if size > 1):
        harness.on_ranks(ranks, __file__, "--latency", "--out", folder)
        took, cpu_s = json.loads((folder / "0.json").read_text())
        tenth, median = (took[len(took) * part // 10] for part in (1, 5))
        yield [str(ranks), *(f"{1e6 * each:.0f}" for each in (tenth, median, cpu_s))]


def measured(folder: Path, row: str, ranks: int, keys: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The counts of each rank, snapshot by snapshot."""
    model, strategy, *params = row.split(":")
    out = Path(tempfile.mkdtemp(dir=folder))
    own = dict(each.split("=") for each in params)
    configured = json.dumps({"model": model, "strategy": strategy, "strategy_params": own, **keys})
    harness.on_ranks(ranks, __file__, "--rank-of", configured, "--store", folder / "store", "--out", out)
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
    numbers = [
        sum(by_kind.values()),
        *(by_kind[kind] for kind in KINDS),
        sum(each["waits"] for each in every),
    ]
    kib = sum(each["sent_bytes"] for each in every) / len(every) / 1024
    means = f"{statistics.mean(cpu):.3f}", f"{statistics.mean(inner):.3f}"
    return [*(f"{number / len(every):.1f}" for number in numbers), f"{kib:,.1f}", *means]


def places(found: list[list[dict[str, Any]]]) -> list[list[str]]:
    """Collectives of rank 0 per snapshot, by kind and place, most first."""
    counts: Counter[tuple[str, str]] = Counter()
    for snapshot in found[0]:
        for kind, where, count in snapshot["begun"]:
            counts[where, kind] += count
    ordered = counts.most_common()
    return [
        [where, kind.replace("_", "-"), f"{count / len(found[0]):.1f}"] for (where, kind), count in ordered
    ]


def main() -> None:
    hidden = {"type": Path, "help": argparse.SUPPRESS}
    given = harness.options(
        __doc__, {"rows": ROWS}, data=harness.DATA / "collegemsg.parquet", events=2_000, ranks=[1, 2, 4], places=False,
        keys={"type": json.loads, "default": {}}, latency=False, out=hidden, store=hidden,
        rank_of={"type": json.loads, "help": argparse.SUPPRESS},
    )  # fmt: skip
    if harness.is_rank():
        latency(given.out) if given.latency else work(given)
        return
    harness.begin()
    by_place = {}

    def rows(folder: Path) -> Iterator[list[str]]:
        for row in given.rows:
            for ranks in given.ranks:
                found = measured(folder, row, ranks, given.keys)
                model, *strategy = row.split(":")
                if ranks == 2 and given.places:
                    by_place[row] = places(found)
                yield [f"`{model}`", f"`{': '.join(strategy)}`", str(ranks), *cells(found)]

    with harness.scratch() as folder:
        if given.latency:
            titles = "ranks | µs, fastest tenth | µs, median | CPU µs per rank"
            harness.table(titles, latencies(folder, given.ranks))
            return
        from schemas.config import Lane
        from stream.decode.files import read_events

        source, interval_us = evened(read_events(harness.existing(given.data)), given.events)
        lane = Lane(name=LANE.name, algorithm=LANE.algorithm, parts=max(given.ranks))
        harness.built(folder / "store", source, interval_us, [lane])
        kinds = " | ".join(kind.replace("_", "-") for kind in KINDS)
        titles = f"model | strategy | ranks | collectives | {kinds} | waits | KiB | CPU s | work s"
        harness.table(titles, rows(folder))
    for row, found in by_place.items():
        print(f"\n`{row}`, two ranks, collectives of rank 0 per snapshot:")
        harness.table("place | kind | number", found)


if __name__ == "__main__":
    main()
