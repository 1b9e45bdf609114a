"""What dropping duplicates costs and holds: python benchmarks/duplicates.py.

Polls of 20,000 events, each with an event_id of 36 characters (a UUID's length), every tenth a repeat, on one core.
"""

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from stream.snapshots.event_ids import EventIds

POLL = 20_000


def polls(window_ids: int, count: int) -> Iterator[tuple[pa.ChunkedArray, np.ndarray]]:
    rng = np.random.default_rng(0)
    for n in range(count):
        fresh = np.arange(n * POLL, (n + 1) * POLL)
        again = np.maximum(fresh - rng.integers(1, max(2, window_ids // 2), POLL), 0)
        ids = np.where(rng.random(POLL) < 0.1, again, fresh)
        yield pa.chunked_array([pa.array([f"{i:036d}" for i in ids])]), fresh


def main() -> None:
    print(f"{'ids in the window':>20}{'M events/s':>14}{'bytes an id':>14}")
    for window_ids in (10_000, 1_000_000):
        ids = EventIds(window_ids, 10**9)
        seconds = []
        for names, times in polls(window_ids, 2 * window_ids // POLL + 60):
            start = time.process_time()
            ids.duplicates(names, times, np.zeros(POLL, bool))
            seconds.append(time.process_time() - start)
        steady = seconds[len(seconds) // 2 :]  # growing and forgetting included
        alive = min(ids.size, int(0.9 * window_ids))
        print(f"{window_ids:>20,}{POLL * len(steady) / sum(steady) / 1e6:>14.1f}{ids.nbytes / alive:>14.0f}")


if __name__ == "__main__":
    main()
