"""Backfill: rows a second from Parquet into the log, and the memory that takes, by the file's length.

    python benchmarks/backfill.py [--rows 2000000,8000000] [--days 30]

One table; each line is a process of its own, without Kafka (its ends are given as empty). ``raw`` is reading the same
columns from the file and nothing else, in the same run.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHUNK = 1 << 20
T0 = 1_700_000_000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="2000000,8000000", help="Lengths of files, comma-separated.")
    parser.add_argument("--days", type=int, default=30, help="Event time of a file; a snapshot is a day.")
    parser.add_argument("--one", nargs=2, metavar=("FILE", "STORE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*map(Path, arguments.one))))
        return
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print(
        f"{'rows':>12} {'file MB':>8} {'raw rows/s':>12} {'rows/s':>12} {'ratio':>6} {'peak MB':>8} {'snapshots':>9}"
    )
    for rows in map(int, arguments.rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "past.parquet"
            make(file, rows, arguments.days)
            command = [sys.executable, __file__, "--one", str(file), str(Path(folder) / "store")]
            told = json.loads(
                subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1]
            )
            print(
                f"{rows:>12,} {file.stat().st_size / 1e6:>8.1f} {told['raw']:>12,.0f} {told['rate']:>12,.0f} "
                f"{told['rate'] / told['raw']:>6.2f} {told['peak_mb']:>8.0f} {told['snapshots']:>9}"
            )


def make(file: Path, rows: int, days: int) -> None:
    """A file in order of time, in row groups of a million."""
    rng = np.random.default_rng(1)
    schema = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("t", pa.float64())])
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, rows, CHUNK):
            count = min(CHUNK, rows - first)
            t = (
                T0
                + np.sort(rng.random(count) + np.arange(count)) * (days * 86_400 / rows)
                + first * (days * 86_400 / rows)
            )
            ids = rng.zipf(1.3, (2, count)) % 1_000_000
            writer.write_table(pa.table([ids[0], ids[1], t], schema=schema))


def measure(file: Path, store: Path) -> dict[str, float]:
    """One backfill in this process."""
    from unittest.mock import patch

    from schemas.config import StreamConfig
    from stream.job.backfill import backfill

    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in pq.ParquetFile(file, memory_map=True).iter_batches(1 << 18))
    raw = rows / (time.perf_counter() - started)
    config = StreamConfig(
        graph="bench",
        store=str(store),
        kafka={"bootstrap": "nowhere:9092", "topics": [{"name": "edges"}]},  # type: ignore[arg-type]
        snapshots={"interval_s": 86_400},  # type: ignore[arg-type]
    )
    with patch("stream.job.backfill.topic_bounds", return_value=[]):
        done = backfill(config, [file])
    assert done.events == rows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"raw": raw, "rate": rows / done.seconds, "peak_mb": peak, "snapshots": float(done.snapshots)}


if __name__ == "__main__":
    main()
