"""Every byte of a small store flipped, one at a time: how many flips ``verify`` finds, and how long one look takes.

Usage: python benchmarks/flipped_bytes.py [--every N] [--compacted]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from every_kind import make_every_kind, missed_flips
from placed import files_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="flip every so many bytes")
    parser.add_argument("--compacted", action="store_true", help="a store with indexes and dropped snapshots")
    given = parser.parse_args()
    every = given.every
    with tempfile.TemporaryDirectory() as folder:
        store = make_every_kind(
            Path(folder), "hash", snapshots=2 if given.compacted else 1, compacted=given.compacted
        )
        files = files_of(store).values()
        size = sum(path.stat().st_size for path in files)
        started = time.perf_counter()
        missed = list(missed_flips(store, every=every))
        seconds = time.perf_counter() - started
    flips = -(-size // every)
    print(
        f"{len(files)} files, {size} bytes; {flips} flips in {seconds:.0f} s, {1e3 * seconds / flips:.1f} ms each"
    )
    print(f"not found: {len(missed)}", *missed, sep="\n")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
