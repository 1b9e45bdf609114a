"""Days of events, drawn by the number of their first day."""

import numpy as np
from streaming import T0, edge

DAY_S, DAYS, NODES = 86_400, 8, 20


def days(first: int, end: int) -> list[bytes | None]:
    rng = np.random.default_rng(first)
    return [
        edge(int(rng.integers(NODES)), int(rng.integers(5)), T0 - T0 % DAY_S + day * DAY_S + 10 * number)
        for day in range(first, end)
        for number in range(40)
    ]
