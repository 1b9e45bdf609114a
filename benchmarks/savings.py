"""What additive storage saves, on DistDy's synthetic graphs and on real streams: python benchmarks/savings.py [synthetic] [real].

Synthetic: Table 2's graphs (``--sizes`` in thousand nodes), 5 snapshots in a window of 5, K = 4, S = 4, 128 binary features.
Real: published streams with a bag of words per node, the words being the hashed ids of those it dealt with, 128 of them; windows
of all snapshots, S = 32.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stream.decode.files import read_events
from stream.store.savings import measure
from stream.synthetic.table2 import PAPER_GRAPHS, paper_snapshots

SIZES = [10, 20, 50, 100]
CHANGES = (0.1, 0.3, 0.7)
"""Of edges and of features alike."""
LANES: tuple[dict[str, Any], ...] = (
    {"algorithm": "hash"},
    {"algorithm": "distdy", "params": {"move_cost": 2.0}},
)
MORE_LANES: tuple[dict[str, Any], ...] = ({"algorithm": "distdy"}, {"algorithm": "ldg"})
"""Where 30 % changed; ``ldg`` of the smallest graph only."""
REAL = [
    ("collegemsg", 13),
    ("collegemsg", 30),
    ("jodie_wikipedia", 13),
    ("email_eu", 13),
    ("reality_call", 30),
]
WORDS = 128


def row(stream: str, lane: dict[str, Any], found: dict[str, Any]) -> list[str]:
    params = " ".join(f"{key} {value:g}" for key, value in lane.get("params", {}).items())
    shares = (f"{100 * found[key]:.1f}" for key in ("saving", "feature_saving", "edge_saving", "disk_saving"))
    sizes = (f"{found[key] / 1e6:.1f}" for key in ("full_bytes", "additive_bytes", "disk_bytes"))
    return [
        f"{stream}, {lane['algorithm']} {params}".rstrip(),
        *shares,
        *sizes,
        f"{100 * found['moved_share']:.0f}",
    ]


def synthetic(folder: Path, given: Any) -> Iterator[list[str]]:
    fixed = {"parts": 4, "snapshots": 5, "window": 5, "segments": 4}

    def made(graph: str, **more: Any) -> Any:
        tables = paper_snapshots(replace(PAPER_GRAPHS[graph], snapshots=5), **more)
        pq.write_table(pa.concat_tables(list(tables), promote_options="default"), folder / "graph.parquet")
        return read_events(folder / "graph.parquet")

    for graph in (f"{size}k-{density}" for size in given.sizes for density in ("sparse", "mid", "dense")):
        for change in CHANGES:
            source = made(graph, change=change)
            lanes = (*LANES, *MORE_LANES) if change == 0.3 else LANES
            for lane in lanes if graph == "10k-sparse" else lanes[:3]:
                yield row(f"{graph}, {100 * change:.0f} %", lane, measure(source, **fixed, **lane))
    if SIZES[0] in given.sizes:  # features alone, as the paper's figure 9(a) has it
        source = made("10k-sparse", features=0)
        for change in (0.1, 0.7):
            for lane in LANES:
                found = measure(source, features=128, change=change, **fixed, **lane)
                yield row(f"10k-sparse, {100 * change:.0f} % of features", lane, found)


def real(folder: Path, given: Any) -> Iterator[list[str]]:
    for name, snapshots in REAL:
        if not (given.data / f"{name}.parquet").exists():
            print(f"{name}: its file is not here")
            continue
        file = folder / f"{name}.parquet"
        pq.write_table(with_words(pq.read_table(given.data / f"{name}.parquet"), snapshots), file)
        for lane in LANES:
            found = measure(
                read_events(file), parts=4, snapshots=snapshots, window=snapshots, segments=32, **lane
            )
            yield row(f"{name}, {snapshots} snapshots", lane, found)


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
    parts = {"synthetic": synthetic, "real": real}
    given = harness.options(__doc__, {"parts": []}, sizes=SIZES, data=harness.DATA)
    harness.begin()
    with harness.scratch() as folder:
        rows = (each for name in harness.chosen(given.parts, parts) for each in parts[name](folder, given))
        harness.table(
            "stream | saved % | features | pairs | disk | whole MB | additive MB | disk MB | moved %", rows
        )


if __name__ == "__main__":
    main()
