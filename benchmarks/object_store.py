"""A store in a bucket beside one in a folder: python benchmarks/object_store.py [--latency-ms 20] [--repeats 9].

The service is moto's server on this machine, a Python program that holds everything in memory, so these are the costs of
our own requests and not those of a real service: --latency-ms adds a delay to each answer, as a service some way off has.

commit: a sealed snapshot of so many edges, beside bare puts of the same bytes by obstore. window: a lane opened and a window
advanced over all its snapshots, by a reader with copies and without. open: a log of 200 commits without an index. verify:
a log of 40 commits, and as it would be if files were fetched one by one. Ways take turns; medians.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from statistics import median
from typing import Any
from unittest.mock import patch

import harness
import numpy as np
import obstore
import pyarrow as pa
from faulty_s3 import Fault, faulty
from harness import in_turns, medians, seconds_of
from s3_server import running

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import place_of
from freshet_graph.stream.store.verify import ahead
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.stream.store.window.view import WindowView

SECOND = 1_000_000
HEADER = LogHeader(graph="g", interval_us=SECOND, ids="int")
LANE = Lane(name="hash", algorithm="hash", parts=1, window=8)


def events(tau: int, edges: int) -> pa.Table:
    rng = np.random.default_rng(tau)
    src, dst = rng.integers(0, edges, edges), rng.integers(0, edges, edges)
    t = np.sort(rng.integers(tau * SECOND, (tau + 1) * SECOND, edges))
    return harness.event_table(src=src, dst=dst, t=t)


def filled(store: str, commits: int) -> None:
    with LogWriter.open(store, HEADER) as log:
        for tau in range(commits):
            log.commit(seal=[(tau, events(tau, 10))])


def commits(stores: dict[str, str], edges: int, repeats: int) -> dict[str, float]:
    """Seconds of a commit that seals one snapshot, and of bare puts of the same files."""
    writers = {name: LogWriter.open(store, HEADER) for name, store in stores.items()}
    seconds: dict[str, list[float]] = {name: [] for name in (*stores, "bare puts")}
    for tau in range(repeats + 1):
        table = events(tau, edges)
        for name, writer in writers.items():
            seconds[name].append(seconds_of(partial(writer.commit, seal=[(tau, table)])))
        seconds["bare puts"].append(bare_puts(stores["bucket"], writers["bucket"], f"bare/{edges}-{tau}"))
    for writer in writers.values():
        writer.close()
    return {name: median(some[1:]) for name, some in seconds.items()}  # the first is warm-up


def bare_puts(store: str, writer: Any, name: str) -> float:
    """Seconds to put the files of a writer's newest commit once more, all at once, then a record, by obstore alone."""
    root: Any = place_of(store)
    files = [root / "log" / file.path for s in writer.last.sealed for file in (s.events, s.nodes)]
    contents, client = [path.read_bytes() for path in files], root.bucket._store()

    def put_all() -> None:
        with ThreadPoolExecutor(len(files)) as pool:
            list(
                pool.map(
                    lambda number: obstore.put(client, f"{name}-{number}", contents[number]),
                    range(len(files)),
                )
            )
        obstore.put(client, f"{name}.json", b"{}", mode="create")

    return seconds_of(put_all)


def window(store: str) -> None:
    """Open a lane and advance a window over all of its snapshots."""
    reader = LaneReader(store, "hash")
    view = WindowView(reader, LANE.window)
    for manifest in reader.manifests[:]:
        view.advance(manifest)
    harness.require(len(view.taus) > 0, "the lane is empty")


def one_by_one(store: str) -> None:
    """Verify without fetching ahead."""
    with patch.object(ahead, "MOST_AHEAD_BYTES", 0):
        verify(store)


def rows(given: Any, address: Callable[..., str], folder: str) -> Iterator[list[str]]:
    def shown(what: str, found: dict[str, float]) -> Iterator[list[str]]:
        return ([what, name, f"{1000 * seconds:.1f}"] for name, seconds in found.items())

    numbers = count()
    for edges in given.edges:
        stores = {"folder": f"{folder}/{edges}", "bucket": address(f"store-{edges}")}
        yield from shown(f"commit of {edges:,} edges", commits(stores, edges, given.repeats))
        for store in stores.values():
            with LaneWriter(store, LANE) as writer:
                writer.catch_up()
        ways = {name: partial(window, store) for name, store in stores.items()}
        ways["bucket, nothing cached"] = lambda e=edges: window(
            address(f"store-{e}", cache=f"{folder}/cold-{next(numbers)}")
        )
        found = medians(in_turns(ways, 3, clock=harness.time.perf_counter, warm=0))
        yield from shown(f"window over {given.repeats + 1} such", found)
    for name, number in (("many", 200), ("some", 40)):
        stores = {"folder": f"{folder}/{name}", "bucket": address(name)}
        for store in stores.values():
            filled(store, number)
        if name == "many":
            ways = {place: partial(LogReader, store) for place, store in stores.items()}
        else:
            ways = {place: partial(verify, store) for place, store in stores.items()}
            ways["bucket, one by one"] = partial(one_by_one, stores["bucket"])
        found = medians(in_turns(ways, 3, clock=harness.time.perf_counter, warm=0))
        yield from shown("open 200 commits, unindexed" if name == "many" else "verify 40 commits", found)


def main() -> None:
    given = harness.options(__doc__, latency_ms=0.0, repeats=9, edges=[1_000, 1_000_000])
    with harness.scratch() as folder, running(folder) as s3, faulty(s3.endpoint) as front:
        if given.latency_ms:
            front.rule = lambda method, path: Fault(delay_s=given.latency_ms / 1000)
        endpoint = front.endpoint if given.latency_ms else s3.endpoint
        address = lambda name, **keys: s3.store(endpoint=endpoint, name=name, **keys)  # noqa: E731
        harness.table("what | where | ms", rows(given, address, str(folder)))


if __name__ == "__main__":
    main()
