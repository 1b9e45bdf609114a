"""Every byte of a small store flipped, one at a time: how many flips ``verify`` finds, and how long one look takes.

    python benchmarks/flipped_bytes.py [--every N]

``--every``: flip every so many bytes.
"""

import time

import harness
from every_kind import make_every_kind, missed_flips
from placed import files_of


def main() -> None:
    given = harness.options(__doc__, every=1)
    harness.begin()
    with harness.scratch() as folder:
        store = make_every_kind(folder, "hash", snapshots=1, compacted=False)
        files = files_of(store).values()
        size = sum(path.stat().st_size for path in files)
        began = time.perf_counter()
        missed = list(missed_flips(store, every=given.every))
        seconds = time.perf_counter() - began
    flips = -(-size // given.every)
    print(
        f"{len(files)} files, {size} bytes; {flips} flips in {seconds:.0f} s, {1e3 * seconds / flips:.1f} ms each"
    )
    harness.require(flips > 0 and not missed, f"not found: {missed}")


if __name__ == "__main__":
    main()
