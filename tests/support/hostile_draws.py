"""Draws that JSON and Arrow messages share: bytes changed at random, numbers and names that nobody should send."""

from collections.abc import Callable
from typing import Any

import numpy as np

T0 = 1_100_000_000
HOSTILE_NUMBERS = (
    "1e999", "-1e999", "1e-999", "9" * 400, "-" + "9" * 400, "0." + "1" * 500, "1E+400000", "1e99999999999999999999",
    "9223372036854775808", "-9223372036854775809", "18446744073709551616", "-0", "-0.0", "1.5", "NaN", "Infinity", "-Infinity",
    "0x10", "01", "+1", ".5", "5.", "1e", "--1", "1_000",
)  # fmt: skip
HOSTILE_INTS = (-1, -(2**31), 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 0, 1, 255, 65_536)
FIELDS = (
    "src", "dst", "t", "op", "weight", "features", "label", "event_id", "node", "offset", "values", "x",
)  # fmt: skip
Make = Callable[[np.random.Generator], bytes | None]


def mutate(rng: np.random.Generator, value: bytes) -> bytes:
    """A few bytes flipped, put in, left out, repeated or set to zero."""
    changed = bytearray(value)
    for _ in range(int(rng.integers(1, 6))):
        if not changed:
            break
        at = int(rng.integers(0, len(changed)))
        span = int(rng.integers(1, 9))
        choice = int(rng.integers(0, 5))
        if choice == 0:
            changed[at] ^= 1 << int(rng.integers(0, 8))
        elif choice == 1:
            changed[at:at] = rng.bytes(span)
        elif choice == 2:
            del changed[at : at + span]
        elif choice == 3:
            changed[at:at] = changed[at : at + span]
        else:
            changed[at : at + span] = bytes(len(changed[at : at + span]))
    return bytes(changed)


def random_bytes(rng: np.random.Generator) -> bytes:
    return rng.bytes(int(10 ** rng.uniform(0, 3)) - 1)


def any_of(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(0, len(choices)))]
