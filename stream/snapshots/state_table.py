"""NumPy arrays of any shape as one Arrow row, for the state of graphs and partitioners."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SHAPE = b"shape"


def pack(arrays: dict[str, NDArray[Any]]) -> pa.Table:
    """Put arrays into a table of one row, with a list column per array.

    Args:
        arrays: Numeric arrays by name, of any shape; scalars as arrays of shape ().

    Returns:
        Table with one row; a column's shape is in the metadata of its field.
    """
    fields, columns = [], []
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array).reshape(-1)
        values = pa.array(flat.view(np.uint8) if flat.dtype == np.bool_ else flat)
        column = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
        shape = ",".join(map(str, array.shape))
        metadata = {_SHAPE: shape.encode(), b"dtype": str(array.dtype).encode()}
        fields.append(pa.field(name, column.type, nullable=False, metadata=metadata))
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def unpack(table: pa.Table) -> dict[str, NDArray[Any]]:
    """Arrays of a packed table: fresh, writable copies with their names, types and shapes.

    Raises:
        ValueError: The table was not made by ``pack``.
    """
    if table.num_rows != 1:
        raise ValueError(f"a state has one row, found {table.num_rows}")
    arrays: dict[str, NDArray[Any]] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        metadata = field.metadata or {}
        if _SHAPE not in metadata:
            raise ValueError(f"column {field.name} is not a packed array: its shape is missing")
        shape = tuple(int(n) for n in metadata[_SHAPE].decode().split(",") if n)
        flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        arrays[field.name] = np.array(flat, dtype=metadata[b"dtype"].decode()).reshape(shape)
    return arrays
