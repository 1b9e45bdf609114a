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

``--keys`` is more of the configuration, JSON. ``--latency`` measures an all-reduce of one number between processes instead.
"""

import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
from live_rate import LANE, LEFT_OUT

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.continual.follower import Follower
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import join_ranks

ROWS = ["tgn-history:pac", "sage-linear:vertex:fetch=owner", "sage-linear:vertex", "tgcn:snapshot"]
KINDS = ("all_reduce", "all_to_all", "broadcast")
WARM, TIMES = 200, 2000
"""Of all-reduces whose latency is measured."""


class CountingLink:
    """A link that counts the collectives that begin on it, by kind, and the waits.

    Args:
        link: The counted one.
    """

    def __init__(self, link: Any) -> None:
        self._link, self.rank, self.size, self.now = link, link.rank, link.size, link.now
        self.begun: Counter[str] = Counter()
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
        self.begun[kind] += 1
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


def work(store: Path, keys: dict[str, Any], checkpoint: str) -> list[dict[str, Any]]:
    """As one rank: follow a store to its end; the counts of each snapshot."""
    own = {"store": str(store), "lane": LANE.name, "threads": 1, "checkpoint": checkpoint}
    config = TrainerConfig.model_validate({**own, **keys})
    ranks = join_ranks(config)
    link = ranks._link = CountingLink(ranks._link)
    lane = LaneReader(store, LANE.name)
    trainer = Trainer(config, lane, ranks, TrainerMetrics(config, ranks.rank))
    follower = Follower(ranks, until_idle_s=0, stop=lambda: False, waiting=lambda *_: None)
    snapshots: list[dict[str, Any]] = []
    while manifest := follower.next(lane, trainer.sequence, trainer.load):
        before, began = link.begun.copy(), (link.waits, ranks.traffic.copy(), time.process_time(), link.cpu_s)
        trainer.step(manifest)
        waits, traffic, cpu_s, inside_s = began
        snapshots.append({
            "begun": link.begun - before,
            "waits": link.waits - waits,
            "sent_bytes": sum(ranks.traffic.since(traffic).sent_bytes.values()),
            "cpu_s": time.process_time() - cpu_s,
            "inside_s": link.cpu_s - inside_s,
        })  # fmt: skip
    ranks.close()
    return snapshots[int(LEFT_OUT * len(snapshots)) :]


def latency() -> tuple[list[float], float]:
    """As one rank: seconds of all-reduces of one number on the wall, in order, and of the processor."""
    ranks = Ranks.from_environment("cpu", threads=1)
    for _ in range(WARM):
        ranks.total([1.0])
    began = time.process_time()
    took = sorted(harness.seconds_of(lambda: ranks.total([1.0])) for _ in range(TIMES))
    cpu_s = (time.process_time() - began) / TIMES
    ranks.close()
    return took, cpu_s


def latencies(sizes: list[int]) -> Iterator[list[str]]:
    for ranks in (size for size in sizes if size > 1):
        took, cpu_s = harness.on_ranks(ranks, latency)[0]
        tenth, median = (took[len(took) * part // 10] for part in (1, 5))
        yield [str(ranks), *(f"{1e6 * each:.0f}" for each in (tenth, median, cpu_s))]


def rows(given: Any) -> Iterator[list[str]]:
    source, interval_us = harness.evened(read_events(harness.existing(given.data)), given.events)
    lane = LANE.model_copy(update={"parts": max(given.ranks)})
    with harness.scratch() as folder:
        store = harness.built(folder / "store", source, interval_us, [lane])
        for row in given.rows:
            model, strategy, *params = row.split(":")
            own = dict(each.split("=") for each in params)
            keys = {"model": model, "strategy": strategy, "strategy_params": own, **given.keys}
            for ranks in given.ranks:
                found = harness.on_ranks(ranks, work, store, keys, tempfile.mkdtemp(dir=folder))
                yield [f"`{model}`", f"`{': '.join([strategy, *params])}`", str(ranks), *cells(found)]


def cells(found: list[list[dict[str, Any]]]) -> list[str]:
    """Columns of a row from the snapshots of each rank."""
    every = [snapshot for rank in found for snapshot in rank]
    begun = sum((each["begun"] for each in every), Counter[str]())
    harness.require(len(found) == 1 or begun.total() > 0, "no collective was counted")
    cpu = [statistics.median(each["cpu_s"] for each in rank) for rank in found]
    inner = [statistics.median(each["cpu_s"] - each["inside_s"] for each in rank) for rank in found]
    numbers = [begun.total(), *(begun[kind] for kind in KINDS), sum(each["waits"] for each in every)]
    kib = sum(each["sent_bytes"] for each in every) / len(every) / 1024
    means = f"{statistics.mean(cpu):.3f}", f"{statistics.mean(inner):.3f}"
    return [*(f"{number / len(every):.1f}" for number in numbers), f"{kib:,.1f}", *means]


def main() -> None:
    given = harness.options(
        __doc__, {"rows": ROWS}, data=harness.DATA / "collegemsg.parquet", events=2_000, ranks=[1, 2, 4],
        keys={"type": json.loads, "default": {}}, latency=False,
    )  # fmt: skip
    if given.latency:
        harness.table("ranks | µs, fastest tenth | µs, median | CPU µs per rank", latencies(given.ranks))
        return
    kinds = " | ".join(kind.replace("_", "-") for kind in KINDS)
    titles = f"model | strategy | ranks | collectives | {kinds} | waits | KiB | CPU s | work s"
    harness.table(titles, rows(given))


if __name__ == "__main__":
    main()
