"""Names of array types, defined here only."""

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int16 = NDArray[np.int16]
Int8 = NDArray[np.int8]
UInt64 = NDArray[np.uint64]
UInt32 = NDArray[np.uint32]
UInt16 = NDArray[np.uint16]
UInt8 = NDArray[np.uint8]
Float64 = NDArray[np.float64]
Float16 = NDArray[np.float16]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
Words = NDArray[np.uint64]
"""Sets of parts or of lanes, one bit each."""
