"""Columns without a value take no memory of their own, and are what they would be otherwise."""

import pyarrow as pa
import pytest

from freshet_graph.stream.decode import arrow
from freshet_graph.stream.decode.columns import NULL_KINDS, SHARED_ROWS, nulls


@pytest.mark.parametrize("kind", sorted(NULL_KINDS, key=str), ids=str)
@pytest.mark.parametrize("rows", [0, 3, SHARED_ROWS + 1])
def test_shared_nulls_are_nulls(kind: pa.DataType, rows: int) -> None:
    found = nulls(kind, rows)
    found.validate(full=True)
    assert found.equals(pa.nulls(rows, kind))


def test_a_column_without_a_value_is_not_copied_with_the_others() -> None:
    def batch(label: int | None) -> pa.RecordBatch:
        return pa.record_batch({"t": [1, 2], "label": pa.array([label, None], pa.int32())})

    shared = nulls(pa.int32(), 4).buffers()[1].address
    for labels in ([None, None], [7, None]):
        together = arrow.one_table([batch(label) for label in labels])
        assert together.to_pylist() == [row for label in labels for row in batch(label).to_pylist()]
        [label] = together["label"].chunks
        assert (label.buffers()[1].address == shared) == (labels[0] is None)


def test_hostile_types_have_no_block() -> None:
    wide = pa.list_(pa.null(), 1 << 30)  # no bytes a row, a terabyte in Arrow's own block
    batch = pa.record_batch({"t": [1], "features": pa.array([None], wide)})
    assert arrow.one_table([batch]).num_rows == 1
