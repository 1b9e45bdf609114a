"""The reader of Avro messages: a program made from the writer's schema (``avro_schema``), run over the bytes of a whole poll.

The kernel knows no schema, so it is compiled once for all. What it writes are cells, which ``avro_schema`` gives to Arrow.
"""

import numpy as np

from freshet_graph.stream.arrays.kinds import Bool, Int32, Int64, UInt8
from freshet_graph.stream.decode.json_kernel import is_utf8
from freshet_graph.stream.kernels import njit

(END, LONG, LONG_AS_DOUBLE, FLOAT, FLOAT_AS_DOUBLE, DOUBLE, BOOLEAN, BYTES, TEXT, FIXED, SYMBOL) = range(11)
(OPTION, UNION, JUMP, PRESENT, LIST, ITEM, ENTRY) = range(11, 18)
"""Operations. Columns of an instruction: the operation, a slot of the row (−1: the value is skipped), the slot's level, and an
argument. Level 0 has a row per message, another one a row per item of a wanted array.

``LONG`` … ``DOUBLE`` store a number's bits. ``BYTES``, ``TEXT`` and ``FIXED`` (of so many bytes) store the begin, and the length
in the next slot. ``SYMBOL`` is an index below its argument. ``OPTION`` is a union of null and another type: its level is the
branch of null, which leads to its argument. ``UNION`` has so many branches, each a ``JUMP`` that follows. ``PRESENT`` stores that
a record is there. ``LIST`` is an array or a map, which ends at its argument; its level is that of its items, −1 if they are
skipped. The instruction after it begins each item: ``ITEM``, or ``ENTRY`` of a map.
"""

(CUT, LONG_NUMBER, NO_LENGTH, NO_BRANCH, NO_SYMBOL, NO_TEXT, NO_COUNT, MORE) = range(1, 9)
"""What is wrong with a message."""

MOST_NESTED = 64
"""Most arrays and maps inside of each other."""
_NUMBER_BITS = 63


@njit(cache=True, nogil=True, inline="always")
def _number(data: UInt8, i: int, end: int) -> tuple[int, int, int]:
    """A zigzag number at i: it, the position after it, and what is wrong (0: nothing)."""
    bits, shift = np.uint64(0), 0
    while i < end:
        c = data[i]
        i += 1
        if shift == _NUMBER_BITS and c > 1:
            return 0, i, LONG_NUMBER
        bits |= np.uint64(c & 0x7F) << np.uint64(shift)
        if c < 0x80:
            return int(np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))), i, 0
        shift += 7
    return 0, i, CUT


@njit(cache=True, nogil=True)
def read_values(
    data: UInt8,
    starts: Int64,
    ends: Int64,
    program: Int32,
    slot_levels: Int64,
    bases: Int64,
    capacities: Int64,
    cells: Int64,
    valid: Bool,
    rows: Int64,
    faults: Int64,
    first: int,
) -> tuple[int, int]:
    """Read values, message after message, until a level has no room left.

    Args:
        data: uint8, the bytes of the poll.
        starts: int64 [n], where each message's value begins.
        ends: int64 [n], where its message ends.
        program: int32 [instructions, 4], see the operations.
        slot_levels: int64 [slots], the level of each slot.
        bases: int64 [slots], the place of each slot's first row in ``cells`` and ``valid``.
        capacities: int64 [levels], most rows of each.
        cells: int64, gets the values; zeros.
        valid: bool, gets which rows have a value; all false.
        rows: int64 [levels], the number of rows so far.
        faults: int64 [n, 3], gets what is wrong with a message (0: nothing), the instruction, and where
            what it reads begins.
        first: The first message to read.

    Returns:
        The number of messages read, and the level without room.
    """
    before, left = rows.copy(), np.zeros(MOST_NESTED, np.int64)
    list_rows, item_rows = np.zeros(MOST_NESTED, np.int64), np.zeros(MOST_NESTED, np.int64)
    real = np.zeros(1, np.float64)
    real_bits = real.view(np.int64)
    single = np.zeros(1, np.int32)
    single_value = single.view(np.float32)
    # The row that a slot of a level belongs to: of items the one that was begun last.
    row = np.zeros(len(rows), np.int64)
    for m in range(first, len(starts)):
        i, end = starts[m], ends[m]
        before[:] = rows
        row[0] = rows[0]
        fault = pc = begin = 0
        depth = -1
        full = -1
        while True:
            op, slot, level, argument = program[pc, 0], program[pc, 1], program[pc, 2], program[pc, 3]
            pc, begin = pc + 1, i
            if op in (LONG, SYMBOL):
                number, i, fault = _number(data, i, end)
                if fault == 0 and slot >= 0:
                    if op == SYMBOL and not 0 <= number < argument:
                        fault = NO_SYMBOL
                    cell = bases[slot] + row[level]
                    cells[cell], valid[cell] = number, True
            elif op in (TEXT, BYTES, FIXED):
                number = argument
                if op != FIXED:
                    number, i, fault = _number(data, i, end)
                if fault == 0 and number < 0:
                    fault = NO_LENGTH
                elif fault == 0 and number > end - i:
                    fault = CUT
                elif fault == 0:
                    if slot >= 0:
                        cell = bases[slot] + row[level]
                        cells[cell], valid[cell] = i, True
                        cells[bases[slot + 1] + row[level]] = number
                        if op == TEXT:
                            high_bits = np.uint8(0)
                            for k in range(i, i + number):
                                high_bits |= data[k]
                            if high_bits >= 0x80 and not is_utf8(data, i, i + number):
                                fault = NO_TEXT
                    i += number
            elif op in (OPTION, UNION):
                number, i, fault = _number(data, i, end)
                if fault == 0 and not 0 <= number < (2 if op == OPTION else argument):
                    fault = NO_BRANCH
                elif fault == 0 and op == UNION:
                    pc += number
                elif fault == 0 and number == level:
                    pc = argument
            elif op in (DOUBLE, FLOAT, FLOAT_AS_DOUBLE):
                size = 8 if op == DOUBLE else 4
                if end - i < size:
                    fault = CUT
                elif slot >= 0:
                    bits = np.uint64(0)
                    for k in range(size):
                        bits |= np.uint64(data[i + k]) << np.uint64(8 * k)
                    number = np.int64(bits)
                    if op == FLOAT_AS_DOUBLE:
                        single[0] = np.int32(np.uint32(bits))
                        real[0] = single_value[0]
                        number = real_bits[0]
                    cell = bases[slot] + row[level]
                    cells[cell], valid[cell] = number, True
                i += size
            elif op == LONG_AS_DOUBLE:
                number, i, fault = _number(data, i, end)
                if slot >= 0:
                    real[0] = number
                    cell = bases[slot] + row[level]
                    cells[cell], valid[cell] = real_bits[0], True
            elif op == BOOLEAN:
                if i == end:
                    fault = CUT
                elif slot >= 0:
                    cell = bases[slot] + row[level]
                    cells[cell], valid[cell] = data[i] != 0, True
                i += 1
            elif op == JUMP:
                pc = argument
            elif op == PRESENT:
                valid[bases[slot] + row[level]] = True
            elif op == LIST:
                depth += 1
                left[depth] = 0
                if slot >= 0:
                    list_rows[depth] = bases[slot] + row[slot_levels[slot]]
                    item_rows[depth] = rows[level]
            elif op in (ITEM, ENTRY):
                if left[depth] == 0:
                    number, i, fault = _number(data, i, end)
                    if fault == 0 and number < 0:  # the bytes of the block stand before it
                        size, i, fault = _number(data, i, end)
                        if fault == 0 and level < 0:
                            if not 0 <= size <= end - i:
                                fault = CUT
                            i += size
                            pc -= 1
                            if fault == 0:
                                continue
                        number = -number
                        if number < 0:
                            fault = NO_COUNT
                    left[depth] = number
                if fault == 0 and left[depth] == 0:
                    if slot >= 0:
                        valid[list_rows[depth]] = True
                        cells[list_rows[depth]] = rows[level] - item_rows[depth]
                    depth -= 1
                    pc = argument
                    continue
                left[depth] -= 1
                if fault == 0 and op == ENTRY:
                    number, i, fault = _number(data, i, end)
                    if fault == 0 and not 0 <= number <= end - i:
                        fault = CUT if number >= 0 else NO_LENGTH
                    i += number
                if level >= 0:
                    if rows[level] == capacities[level]:
                        full = level
                        break
                    row[level] = rows[level]
                    rows[level] += 1
            else:
                if i != end:
                    fault = MORE
                break
            if fault != 0:
                break
        if fault == 0 and full < 0:
            rows[0] += 1
            continue
        rows[0] += 1  # so that its own row is cleared, too
        for slot in range(len(bases)):
            level = slot_levels[slot]
            for cell in range(bases[slot] + before[level], bases[slot] + rows[level]):
                cells[cell], valid[cell] = 0, False
        rows[:] = before
        if full >= 0:
            return m, full
        faults[m, 0], faults[m, 1], faults[m, 2] = fault, pc - 1, begin
    return len(starts), -1
