"""What stands for a refused row of an Arrow message in the dead letters."""

import json

import pyarrow as pa

from freshet_graph.stream.decode.decoder import row_texts


def test_every_row_is_a_json_object_with_the_values_that_it_has():
    batch = pa.RecordBatch.from_pydict(
        {
            "op": pa.array([1, None, -1], pa.int8()),
            "src": pa.array(['q"\\é', "", None]),
            "t": pa.array([2**63 - 1, -(2**63), 0]),
            "weight": pa.array([0.5, float("-inf"), None], pa.float32()),
            "features": pa.array([[1.5, None], None, []], pa.list_(pa.float32())),
            "label": pa.nulls(3, pa.int32()),
        }
    )
    assert [json.loads(text) for text in row_texts(batch).to_pylist()] == batch.to_pylist()
    (text,) = row_texts(pa.RecordBatch.from_pydict({"w": pa.array([float("nan")])})).to_pylist()
    assert text == b'{"w": NaN}'
    assert row_texts(batch.slice(0, 0)).to_pylist() == []
