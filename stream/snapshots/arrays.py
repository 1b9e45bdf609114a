"""Names of the array types that snapshots, partitioners and the store share."""

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
