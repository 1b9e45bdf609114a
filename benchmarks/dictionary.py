"""What dense ids of string ids cost: python benchmarks/dictionary.py.

Rows of two ids each, as a sealed snapshot brings them, on one core. Beside StringDictionary: Arrow's
dictionary_encode alone (it knows no earlier snapshot), and with a plain dict over its distinct values. Medians of
interleaved runs.
"""

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa

from stream.snapshots.string_dictionary import StringDictionary

RUNS = 5
ROWS = 500_000


class PlainDict:
    """Arrow finds the distinct ids of a snapshot, a dict looks each of them up."""

    def __init__(self) -> None:
        self._dense: dict[str, int] = {}

    def encode(self, src: pa.ChunkedArray, dst: pa.ChunkedArray) -> np.ndarray:
        both = pa.concat_arrays([*src.chunks, *dst.chunks])
        interleaved = np.arange(2 * len(src)).reshape(2, len(src)).T.ravel()
        encoded = both.take(pa.array(interleaved)).dictionary_encode()
        dense = self._dense
        known = [dense.setdefault(name, len(dense)) for name in encoded.dictionary.to_pylist()]
        return np.array(known)[encoded.indices.to_numpy(zero_copy_only=False)]


def columns(nodes: int, seed: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes, (2, ROWS))
    return (
        pa.chunked_array([pa.array([f"customer:{node:09d}" for node in src])]),
        pa.chunked_array([pa.array([f"merchant:{node:09d}" for node in dst])]),
    )


def arrow_alone(src: pa.ChunkedArray, dst: pa.ChunkedArray) -> None:
    src.dictionary_encode()
    dst.dictionary_encode()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    pa.set_cpu_count(1)
    StringDictionary().encode(*columns(100, 0))
    print(f"{ROWS:,} rows of two ids of 18 bytes       {'first time':>22}{'all known':>20}")
    for nodes in (1_000, 100_000, 10_000_000):
        src, dst = columns(nodes, 1)
        took: dict[str, tuple[list[float], list[float]]] = {}
        for _ in range(RUNS):
            for name, work in (
                ("Arrow's dictionary_encode, alone", partial(arrow_alone, src, dst)),
                ("dictionary_encode and a dict", partial(PlainDict().encode, src, dst)),
                ("StringDictionary", partial(StringDictionary().encode, src, dst)),
            ):
                first, again = took.setdefault(name, ([], []))
                first.append(seconds(work))
                again.append(seconds(work))
        print(f"{nodes:,} ids to draw from")
        for name, pair in took.items():
            rates = [2 * ROWS / statistics.median(run) / 1e6 for run in pair]
            print(f"  {name:<40}{rates[0]:12.2f} M ids/s{rates[1]:12.2f} M ids/s")


if __name__ == "__main__":
    main()
