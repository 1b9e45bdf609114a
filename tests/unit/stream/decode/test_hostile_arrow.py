"""A hostile Arrow file costs no more memory than its length can stand for, and is an error that names it."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from warm_popen import run

from freshet_graph.stream.store.files.data import FREE_BYTES, MAX_EXPANSION, require_bounded, require_whole

SUPPORT = Path(__file__).parents[3] / "support"


def arrow_file(table: pa.Table, compression: str | None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_no_number_in_a_file_makes_a_reader_allocate_without_bound(tmp_path: Path) -> None:
    """In a process that may take 512 MiB more than it has."""
    done = run(["python", SUPPORT / "hostile_arrow_job.py", tmp_path], environment=os.environ, timeout_s=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bombs refused"] == 2
    assert found["refused"] > 1_000
    assert found["store refused"] > 5


def test_ordinary_compression_is_no_bomb_and_a_bomb_is_told_by_its_size() -> None:
    table = pa.table({"x": pa.array(range(10_000)), "s": pa.array([f"node {i % 50}" for i in range(10_000)])})
    for compression in (None, "zstd", "lz4"):
        require_bounded(arrow_file(table, compression))
    bomb = arrow_file(pa.table({"x": pa.array(np.zeros(1 << 22))}), "zstd")
    allowed = FREE_BYTES + MAX_EXPANSION * bomb.size
    assert allowed < 1 << 25
    with pytest.raises(ValueError, match=f"ask for {1 << 25} bytes, {allowed} are allowed for {bomb.size}"):
        require_bounded(bomb)


def test_nulls_where_the_schema_has_none_are_refused() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], schema=schema)
    with pytest.raises(pa.ArrowInvalid, match="column x has 1 nulls, it must have none"):
        require_whole(batch)
