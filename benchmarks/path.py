"""What each stage between Kafka and the trainer costs on one machine, without Kafka: python benchmarks/path.py.

One stream of synthetic interactions with node features: decoded from Arrow messages, committed to a log, partitioned by three
lanes, read through a window. Wall seconds of one run, after a warm-up on a smaller stream that compiles the kernels.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import harness
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import StreamConfig
from stream.decode.decoder import Decoder
from stream.decode.encode import encode_arrow
from stream.decode.files import read_events
from stream.microbatch import RawBatch
from stream.sink import SnapshotSink, log_header
from stream.store.lane.reader import LaneReader
from stream.store.lane.writer import LaneWriter
from stream.store.log.writer import LogWriter
from stream.store.window.view import WindowView
from stream.synthetic import interactions

LANES = ("distdy", "hash", "sep")
MESSAGES_A_POLL, SNAPSHOTS, FEATURES, PARTS, WINDOW = 64, 50, 16, 4, 4


class Stages:
    """Seconds by stage, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def run(folder: Path, nodes: int, edges: int) -> tuple[int, Stages]:
    file = folder / "events.parquet"
    span_s = 100_000.0
    pq.write_table(interactions(nodes, edges, features=FEATURES, span_s=span_s), file)
    messages = list(encode_arrow(read_events(file).events))
    store = folder / "store"
    kafka = {"bootstrap": "unused:9092", "topics": [{"name": "edges", "format": "arrow"}]}
    config = StreamConfig.model_validate({
        "graph": "bench", "store": str(store), "kafka": kafka, "snapshots": {"interval_s": span_s / SNAPSHOTS},
        "features": {"node": FEATURES},
    })  # fmt: skip
    stages = Stages()
    decoder = Decoder(config.kafka.topics[0], config)
    events = 0
    with LogWriter.open(store, log_header(config)) as writer:
        sink = SnapshotSink(writer, config)
        sink.assign([("edges", 0)])
        for first in range(0, len(messages), MESSAGES_A_POLL):
            polled = pa.array(messages[first : first + MESSAGES_A_POLL], pa.large_binary())
            end = first + len(polled)
            offsets = pa.array(range(first, end), pa.int64())
            with stages("decode (Arrow messages)"):
                batch = decoder.decode(RawBatch("edges", 0, first, end, len(messages), offsets, polled))
            events += batch.events.num_rows
            with stages("log (sort, ids, files, fsync)"):
                sink.offer(batch)
                sink.advance()
        with stages("log (sort, ids, files, fsync)"):
            sink.seal_all()
    for lane in harness.lanes(*LANES, parts=PARTS, window=WINDOW):
        name = lane.name
        with LaneWriter(store, lane) as lane_writer:
            with stages(f"lane {name} (graph, partition, files, fsync)"):
                lane_writer.catch_up()
            reader = LaneReader(store, name)
            algorithm = sum(manifest.quality.seconds for manifest in reader.manifests)
            stages.seconds[f"  of which the partitioner {name}"] = algorithm
    reader = LaneReader(store, "distdy")
    view = WindowView(reader, WINDOW)
    for manifest in reader.manifests:
        with stages("window (advance, adjacency)"):
            view.advance(manifest)
            view.csr(manifest.tau)
    return events, stages


def main() -> None:
    given = harness.options(__doc__, nodes=50_000, edges=1_000_000)
    with harness.scratch() as warm_up, harness.scratch() as folder:
        run(warm_up, 500, 5_000)
        events, stages = run(folder, given.nodes, given.edges)
    harness.require(events >= given.edges, "events were lost")
    print(
        f"{events:,} events of {given.nodes:,} nodes in {SNAPSHOTS} snapshots, {PARTS} parts, F = {FEATURES}"
    )
    rows = ([name.strip(), f"{s:.2f}", f"{events / s / 1e6:.2f}"] for name, s in stages.seconds.items())
    harness.table("stage | s | M events/s", rows)


if __name__ == "__main__":
    main()
