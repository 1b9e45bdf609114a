"""Backfill: rows per second from Parquet into the log, and the memory that takes, by the file's length.

    python benchmarks/backfill.py [--rows 2000000 8000000]

A file has 30 days of event time; a snapshot is a day. Each row is a process of its own, without Kafka (its ends are given as
empty). ``raw`` is reading the same columns from the file and nothing else, in the same run.
"""

import resource
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHUNK, T0, DAYS = 1 << 20, 1_700_000_000, 30


def make(file: Path, rows: int) -> None:
    """A file in order of time, in row groups of a million."""
    rng, step_s = np.random.default_rng(1), DAYS * 86_400 / rows
    schema = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("t", pa.float64())])
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, rows, CHUNK):
            count = min(CHUNK, rows - first)
            t = T0 + np.sort(rng.random(count) + np.arange(count)) * step_s + first * step_s
            ids = rng.zipf(1.3, (2, count)) % 1_000_000
            writer.write_table(pa.table([ids[0], ids[1], t], schema=schema))


def measure(file: Path, store: Path) -> dict[str, Any]:
    """One backfill in this process."""
    from unittest.mock import patch

    from freshet_graph.schemas.config import StreamConfig
    from freshet_graph.stream.job.backfill import backfill

    began = time.perf_counter()
    rows = sum(batch.num_rows for batch in pq.ParquetFile(file, memory_map=True).iter_batches(1 << 18))
    raw = rows / (time.perf_counter() - began)
    keys = harness.stream_keys(store, "nowhere:9092", {"name": "edges"}, snapshots={"interval_s": 86_400})
    with patch("freshet_graph.stream.job.backfill.topic_bounds", return_value=[]):
        done = backfill(StreamConfig.model_validate(keys), [file])
    harness.require(done.events == rows > 0, f"{done.events} events of {rows} rows")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"raw": raw, "rate": rows / done.seconds, "snapshots": done.snapshots, "peak_mib": peak_mib}


def row(rows: int) -> list[str]:
    with harness.scratch() as folder:
        file = folder / "past.parquet"
        make(file, rows)
        found, size = harness.apart(measure, file, folder / "store"), file.stat().st_size
    rates = f"{found['raw']:,.0f}", f"{found['rate']:,.0f}", f"{found['rate'] / found['raw']:.2f}"
    return [f"{rows:,}", f"{size / 1e6:.1f}", *rates, f"{found['peak_mib']:.0f}", str(found["snapshots"])]


def main() -> None:
    given = harness.options(__doc__, rows=[2_000_000, 8_000_000])
    titles = "rows | file, MB | raw, rows/s | rows/s | ratio | peak MiB | snapshots"
    harness.table(titles, map(row, given.rows))


if __name__ == "__main__":
    main()
