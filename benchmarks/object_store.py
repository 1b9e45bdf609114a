"""A store in a bucket beside one in a folder: python benchmarks/object_store.py [--latency-ms 20].

The service is moto's server on this machine, a Python program that holds everything in memory, so these are the costs of
our own requests and not those of a real service: --latency-ms adds a delay to each answer, as a service some way off has.

commit: a sealed snapshot of so many edges, beside bare puts of the same bytes by obstore. window: a lane opened and a window
advanced over all its snapshots, by a reader with copies and without. open: a log of 200 commits without an index. verify:
of a log of 40 commits, and as it would be if files were fetched one by one.
Interleaved, medians.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import obstore
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from faulty_s3 import Fault, faulty
from s3_server import running

from schemas.config import Lane
from schemas.events import event_schema
from schemas.store import LogHeader
from stream.store.lane.reader import LaneReader
from stream.store.lane.writer import LaneWriter
from stream.store.log.reader import LogReader
from stream.store.log.writer import LogWriter
from stream.store.places.object_path import ObjectPath
from stream.store.places.place import place_of
from stream.store.verify import ahead
from stream.store.verify.store import verify
from stream.store.window.view import WindowView

SECOND = 1_000_000
HEADER = LogHeader(graph="g", interval_us=SECOND, ids="int")
LANE = Lane(name="hash", algorithm="hash", parts=1, window=8)


def events(tau: int, count: int) -> pa.Table:
    rng = np.random.default_rng(tau)
    columns = {
        "op": np.ones(count, np.int8),
        "src": rng.integers(0, count, count),
        "dst": rng.integers(0, count, count),
        "t": np.sort(rng.integers(tau * SECOND, (tau + 1) * SECOND, count)),
        "weight": np.ones(count, np.float32),
    }
    return pa.table(
        [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(count, field.type)
            for field in event_schema("int")
        ],
        schema=event_schema("int"),
    )


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def commits(stores: dict[str, str], edges: int, repeats: int) -> dict[str, float]:
    """Seconds of a commit that seals one snapshot, and of bare puts of the same files."""
    writers = {name: LogWriter.open(store, HEADER) for name, store in stores.items()}
    seconds: dict[str, list[float]] = {name: [] for name in (*stores, "bare puts")}
    for tau in range(repeats + 1):
        table = events(tau, edges)
        for name, writer in writers.items():
            taken = timed(partial(writer.commit, seal=[(tau, table)]))
            if tau:  # the first is warm-up
                seconds[name].append(taken)
        if tau:
            seconds["bare puts"].append(bare_puts(stores["bucket"], writers["bucket"], f"bare/{edges}-{tau}"))
    for writer in writers.values():
        writer.close()
    return {name: median(some) for name, some in seconds.items()}


def bare_puts(store: str, writer: LogWriter, name: str) -> float:
    """Seconds to put the files of a writer's newest commit once more, all at once, then a record, by obstore alone."""
    root = place_of(store)
    assert isinstance(root, ObjectPath) and writer.last is not None
    files = [root / "log" / file.path for s in writer.last.sealed for file in (s.events, s.nodes)]
    contents = [path.read_bytes() for path in files]
    client = root.bucket._store()

    def put(number: int) -> None:
        obstore.put(client, f"{name}-{number}", contents[number])

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(files)) as pool:
        list(pool.map(put, range(len(files))))
    obstore.put(client, f"{name}.json", b"{}", mode="create")
    return time.perf_counter() - begun


def reads(stores: dict[str, str], cold: Callable[[], str], repeats: int) -> dict[str, float]:
    """Seconds to open a lane and advance a window over all of its snapshots."""

    def read(store: str) -> None:
        reader = LaneReader(store, "hash")
        view = WindowView(reader, LANE.window)
        for manifest in reader.manifests[:]:
            view.advance(manifest)

    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, store in (*stores.items(), ("bucket, nothing cached", cold())):
            seconds.setdefault(name, []).append(timed(partial(read, store)))
    return {name: median(some) for name, some in seconds.items()}


def looks(stores: dict[str, str], repeats: int = 3) -> dict[str, float]:
    """Seconds to verify; of the bucket also as it would be without fetching ahead."""
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, store in stores.items():
            seconds.setdefault(name, []).append(timed(partial(verify, store)))
        fetching = ahead._ahead
        ahead._ahead = lambda _root, items, work, _size: (partial(work, item) for item in items)
        try:
            seconds.setdefault("bucket, one by one", []).append(timed(partial(verify, stores["bucket"])))
        finally:
            ahead._ahead = fetching
    return {name: median(some) for name, some in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency-ms", type=float, default=0.0, help="delay of each answer")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--edges", type=int, nargs="+", default=[1_000, 1_000_000])
    arguments = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, latency {arguments.latency_ms:g} ms, medians"
    )
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as s3, faulty(s3.endpoint) as front:
        if arguments.latency_ms:
            front.rule = lambda method, path: Fault(delay_s=arguments.latency_ms / 1000)
        endpoint = front.endpoint if arguments.latency_ms else s3.endpoint
        made = 0

        def address(name: str, **keys: object) -> str:
            return s3.store(endpoint=endpoint, name=name, **keys)

        for edges in arguments.edges:
            stores = {"folder": f"{folder}/{edges}", "bucket": address(f"store-{edges}")}
            for name, seconds in commits(stores, edges, arguments.repeats).items():
                print(f"commit of {edges:>9,} edges   {name:<24}{seconds * 1000:>10.1f} ms")
            for store in stores.values():
                with LaneWriter(store, LANE) as writer:
                    writer.catch_up()

            def cold(edges: int = edges) -> str:
                nonlocal made
                made += 1
                return address(f"store-{edges}", cache=f"{folder}/cold-{made}")

            for name, seconds in reads(stores, cold, 3).items():
                print(
                    f"window over {arguments.repeats + 1:>2} such         {name:<24}{seconds * 1000:>10.1f} ms"
                )
        many = {"folder": f"{folder}/many", "bucket": address("many")}
        for store in many.values():
            with LogWriter.open(store, HEADER) as log:
                for tau in range(200):
                    log.commit(seal=[(tau, events(tau, 10))])
        for name, store in many.items():
            seconds = median(timed(partial(LogReader, store)) for _ in range(5))
            print(f"open 200 commits, unindexed {name:<24}{seconds * 1000:>10.1f} ms")
        some = {"folder": f"{folder}/some", "bucket": address("some")}
        for store in some.values():
            with LogWriter.open(store, HEADER) as log:
                for tau in range(40):
                    log.commit(seal=[(tau, events(tau, 10))])
        for name, seconds in looks(some).items():
            print(f"verify 40 commits           {name:<24}{seconds * 1000:>10.1f} ms")


if __name__ == "__main__":
    main()
