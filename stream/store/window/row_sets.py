"""A set of rows of a table in the fewest bytes: four bytes per row, or a bit for every row of the table."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream.arrays.kinds import Bool, Int64, UInt8
from stream.store.window.pair_kernels import mark

_BITS_A_NUMBER = 32


@dataclass(frozen=True, slots=True)
class RowSet:
    """Distinct rows below a limit.

    Attributes:
        limit: Number of rows of the table.
        numbers: uint32, the rows, ascending; None: they are in ``bits``.
        bits: uint8, bit ``row % 8`` of byte ``row // 8`` is set.
    """

    limit: int
    numbers: NDArray[np.uint32] | None
    bits: UInt8

    @classmethod
    def of(cls, rows: Int64, limit: int) -> "RowSet":
        """Hold ``rows``, distinct, in any order and below ``limit`` ≤ 2³²."""
        none = np.empty(0, np.uint8)
        if len(rows) * _BITS_A_NUMBER <= limit:
            return cls(limit, np.sort(rows.astype(np.uint32)), none)
        flags = np.zeros(limit, np.bool_)
        flags[rows] = True
        return cls(limit, None, np.packbits(flags, bitorder="little"))

    def rows(self) -> Int64:
        """The rows, int64 ascending."""
        return np.flatnonzero(self._flags()) if self.numbers is None else self.numbers.astype(np.int64)

    def mark(self, flags: Bool) -> None:
        """Set the flags of the rows, bool (≥ limit,)."""
        if self.numbers is not None:
            flags[self.numbers] = True
        else:
            flags[: self.limit] |= self._flags()

    def _flags(self) -> Bool:
        return np.unpackbits(self.bits, count=self.limit, bitorder="little").view(np.bool_)

    def mark_bits(self, bits: UInt8) -> None:
        """Set the bits of the rows, uint8 (≥ limit / 8,)."""
        if self.numbers is not None:
            mark(bits, self.numbers)
        else:
            bits[: len(self.bits)] |= self.bits

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.bits.nbytes + (0 if self.numbers is None else self.numbers.nbytes)
