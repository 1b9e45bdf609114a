"""What additive storage saves on real streams with a bag of words per node: python benchmarks/savings.py [SET:SNAPSHOTS …].

The words are the hashed ids of those that a node dealt with, 128 of them; S = 32, windows of all snapshots. DistDy's synthetic
graphs need no script: ``freshet-stream synth --paper`` and ``freshet-stream savings``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.store.savings import measure

REAL = ["collegemsg:13", "collegemsg:30", "jodie_wikipedia:13", "email_eu:13", "reality_call:30"]
WORDS = 128


def rows(folder: Path, given: Any) -> Iterator[list[str]]:
    for name, snapshots in (each.split(":") for each in given.streams):
        file, count = folder / f"{name}.parquet", int(snapshots)
        source = harness.existing(given.data / f"{name}.parquet")
        pq.write_table(with_words(pq.read_table(source), count), file)
        found = measure(
            read_events(file), algorithm="hash", parts=4, snapshots=count, window=count, segments=32
        )
        keys = ("saving", "feature_saving", "edge_saving", "disk_saving")
        sizes = (f"{found[key] / 1e6:.1f}" for key in ("full_bytes", "additive_bytes", "disk_bytes"))
        yield [f"{name}, {snapshots} snapshots", *(f"{100 * found[key]:.1f}" for key in keys), *sizes]


def with_words(events: pa.Table, snapshots: int) -> pa.Table:
    """The stream with a node event for each node that a snapshot touches: counts of the words it has met so far."""
    order = np.argsort(events["t"].to_numpy(), kind="stable")
    src, dst, t = (events[name].to_numpy()[order].astype(np.int64) for name in ("src", "dst", "t"))
    t = t - t.min()
    counts = np.zeros((max(src.max(), dst.max()) + 1, WORDS), np.float32)
    piece, tables = t * snapshots // (t.max() + 1), []
    for k in range(snapshots):
        here = piece == k
        ends, others = np.concatenate([src[here], dst[here]]), np.concatenate([dst[here], src[here]])
        np.add.at(counts, (ends, others * 2654435761 % WORDS), 1)
        touched = np.unique(ends)
        n, m = int(here.sum()), len(touched)
        tables.append(pa.table({
            "src": np.concatenate([src[here], touched]),
            "dst": pa.concat_arrays([pa.array(dst[here]), pa.nulls(m, pa.int64())]),
            "t": np.concatenate([t[here], np.full(m, t[here].max(initial=0))]).astype(np.float64),
            "op": np.repeat(np.array([1, 0], np.int8), [n, m]),
            "features": pa.array([None] * n + list(counts[touched]), pa.list_(pa.float32())),
        }))  # fmt: skip
    return pa.concat_tables(tables)


def main() -> None:
    given = harness.options(__doc__, {"streams": REAL}, data=harness.DATA)
    with harness.scratch() as folder:
        harness.table(
            "stream | saved % | features | pairs | files | whole MB | held MB | files MB", rows(folder, given)
        )


if __name__ == "__main__":
    main()
