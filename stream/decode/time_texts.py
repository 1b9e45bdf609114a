"""A column of RFC 3339 texts to event times, with the kernel that reads them in JSON messages."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.events import Reason
from stream.decode.buffers import read_only
from stream.decode.json_kernel import rfc3339
from stream.decode.rules import shorten
from stream.decode.times import rfc3339_to_us
from stream.decode.validate import Faults
from stream.kernels import njit

LOOKS_LIKE_ONE = r"^\s*\d{4}-\d\d-\d\d"
"""The begin of a time in RFC 3339, and of no number."""


def read_times(name: str, texts: pa.Array, faults: Faults) -> pa.Array:
    """Times as timestamp[us] [rows]; a text that is no time is null, and a fault of its row."""
    texts = texts.cast(pa.large_string())
    rows = len(texts)
    t, is_time = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    if rows:
        _, offsets, data = texts.buffers()
        ends = read_only(offsets, np.int64)[texts.offset : texts.offset + rows + 1]
        _read(read_only(data or b"", np.uint8), ends, t, is_time)
    is_time &= texts.is_valid().to_numpy(zero_copy_only=False)
    bad = texts.is_valid().to_numpy(zero_copy_only=False) & ~is_time
    faults.refuse(bad, Reason.WRONG_TYPE, lambda row: _sentence(name, texts[row].as_py()))
    return pa.array(t, mask=~is_time).cast(pa.timestamp("us"))


def _sentence(name: str, text: str) -> str:
    try:
        rfc3339_to_us(text)
    except ValueError as error:
        return f"column {name} has {shorten(text)}, which {error}"
    raise AssertionError(f"the kernel does not read {text!r}, but its reference does")


@njit(cache=True, nogil=True)
def _read(
    data: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int64],
    t: npt.NDArray[np.int64],
    is_time: npt.NDArray[np.bool_],
) -> None:
    for row in range(len(t)):
        is_time[row], t[row] = rfc3339(data, ends[row], ends[row + 1])
