"""What additive storage saves, on DistDy's synthetic graphs and on real streams: python benchmarks/savings.py [synthetic] [real].

Synthetic: Table 2's graphs, 5 snapshots in a window of 5, K = 4, S = 4, 128 binary features. Real: published streams with
a bag of words a node, the words being the hashed ids of those it dealt with, 128 of them; windows of all snapshots, S = 32.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stream.decode.files import read_events
from stream.store.savings import measure
from stream.synthetic.table2 import PAPER_GRAPHS, paper_snapshots

DATA = Path(__file__).parents[2] / "shared" / "data"
SIZES = (10, 20, 50, 100)
DENSITIES = ("sparse", "mid", "dense")
CHANGES = (0.1, 0.3, 0.7)
"""Of edges and of features alike."""
LANES: tuple[dict[str, Any], ...] = (
    {"algorithm": "hash"},
    {"algorithm": "distdy", "params": {"move_cost": 2.0}},
)
MORE_LANES: tuple[dict[str, Any], ...] = ({"algorithm": "distdy"}, {"algorithm": "ldg"})
"""Where 30 % changed; ``ldg`` of the smallest graph only."""
FEATURE_CHANGES = (0.1, 0.7)
"""Of the 10k-sparse graph with 30 % of its edges replaced, as the paper's figure 9(a) has it."""
REAL = [
    ("collegemsg", 13),
    ("collegemsg", 30),
    ("jodie_wikipedia", 13),
    ("email_eu", 13),
    ("reality_call", 30),
]
WORDS = 128


def show(stream: str, lane: dict[str, Any], found: dict[str, Any]) -> None:
    params = " ".join(f"{key} {value:g}" for key, value in lane.get("params", {}).items())
    name = f"{stream}, {lane['algorithm']} {params}".rstrip()
    shares = " | ".join(
        f"{100 * found[key]:.1f}" for key in ("saving", "feature_saving", "edge_saving", "disk_saving")
    )
    sizes = " | ".join(f"{found[key] / 1e6:.1f}" for key in ("full_bytes", "additive_bytes", "disk_bytes"))
    print(f"| {name} | {shares} | {sizes} | {100 * found['moved_share']:.0f} |", flush=True)


def synthetic(folder: Path, sizes: list[int]) -> None:
    for size in sizes:
        for density in DENSITIES:
            for change in CHANGES:
                graph = f"{size}k-{density}"
                file = folder / f"{graph}-{change}.parquet"
                tables = paper_snapshots(replace(PAPER_GRAPHS[graph], snapshots=5), change=change)
                pq.write_table(pa.concat_tables(list(tables), promote_options="default"), file)
                lanes = (*LANES, *MORE_LANES) if change == 0.3 else LANES
                for lane in lanes if graph == "10k-sparse" else lanes[:3]:
                    found = measure(read_events(file), parts=4, snapshots=5, window=5, segments=4, **lane)
                    show(f"{graph}, {100 * change:.0f} %", lane, found)
                file.unlink()
    if SIZES[0] not in sizes:
        return
    bare = folder / "edges-only.parquet"
    tables = paper_snapshots(replace(PAPER_GRAPHS["10k-sparse"], snapshots=5), features=0)
    pq.write_table(pa.concat_tables(list(tables), promote_options="default"), bare)
    for change in FEATURE_CHANGES:
        for lane in LANES:
            found = measure(
                read_events(bare),
                parts=4,
                snapshots=5,
                window=5,
                segments=4,
                features=128,
                change=change,
                **lane,
            )
            show(f"10k-sparse, {100 * change:.0f} % of features", lane, found)


def real(folder: Path) -> None:
    for name, snapshots in REAL:
        if not (DATA / f"{name}.parquet").exists():
            print(f"{name}: its file is not here")
            continue
        file = folder / f"{name}.parquet"
        pq.write_table(with_words(pq.read_table(DATA / f"{name}.parquet"), snapshots), file)
        for lane in LANES:
            found = measure(
                read_events(file), parts=4, snapshots=snapshots, window=snapshots, segments=32, **lane
            )
            show(f"{name}, {snapshots} snapshots", lane, found)


def with_words(events: pa.Table, snapshots: int) -> pa.Table:
    """The stream with a node event for each node that a snapshot touches: counts of the words it has met so far."""
    t = events["t"].to_numpy()
    order = np.argsort(t, kind="stable")
    src, dst, t = (events[name].to_numpy()[order].astype(np.int64) for name in ("src", "dst", "t"))
    t = t - t.min()
    counts = np.zeros((max(src.max(), dst.max()) + 1, WORDS), np.float32)
    piece = t * snapshots // (t.max() + 1)
    tables = []
    for k in range(snapshots):
        here = piece == k
        ends, others = np.concatenate([src[here], dst[here]]), np.concatenate([dst[here], src[here]])
        np.add.at(counts, (ends, others * 2654435761 % WORDS), 1)
        touched = np.unique(ends)
        n, m = int(here.sum()), len(touched)
        tables.append(
            pa.table(
                {
                    "src": np.concatenate([src[here], touched]),
                    "dst": pa.concat_arrays([pa.array(dst[here]), pa.nulls(m, pa.int64())]),
                    "t": np.concatenate([t[here], np.full(m, t[here].max(initial=0))]).astype(np.float64),
                    "op": np.concatenate([np.ones(n, np.int8), np.zeros(m, np.int8)]),
                    "features": pa.array([None] * n + list(counts[touched]), pa.list_(pa.float32())),
                }
            )
        )
    return pa.concat_tables(tables)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["synthetic", "real"])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="Thousand nodes, synthetic only.")
    options = parser.parse_args()
    print("| stream | saved % | features | pairs | disk | whole MB | additive MB | disk MB | moved % |")
    with tempfile.TemporaryDirectory() as made:
        for what in options.what or ("synthetic", "real"):
            synthetic(Path(made), options.sizes) if what == "synthetic" else real(Path(made))
