"""The reader of Avro by programs against its plain twin, ``fastavro``, on any schema and on any bytes."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from avro_twin import plainly_read, wanted_part, without_logical
from fastavro import parse_schema, schemaless_writer
from hostile_avro import any_type, any_value
from hostile_draws import any_of, mutate
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.decode.formats import avro_schema
from freshet_graph.stream.decode.formats.avro_schema import AvroSchema
from freshet_graph.stream.decode.reading import RefusedError
from freshet_graph.stream.kernels import read_only

STRICTER = ("a number has more than 64 bits", "no such branch", "no such symbol", "more than 63 bits")
"""What ``fastavro`` reads: bits beyond the 64th are cut, and −1 is the last branch or symbol."""


def read(schema: AvroSchema, messages: list[bytes]) -> tuple[pa.RecordBatch, dict[int, str]]:
    ends = np.cumsum([0, *map(len, messages)])
    batch, bad, sentences = schema.read(read_only(b"".join(messages), np.uint8), ends[:-1], ends[1:])
    return batch, dict(zip(bad.tolist(), sentences, strict=True))


def paths_of(schema: Any, above: PathKeys = ()) -> list[PathKeys]:
    """The paths of all fields, by their names and their former ones, also through arrays."""
    if isinstance(schema, list):
        return [path for branch in schema for path in paths_of(branch, above)]
    if not isinstance(schema, dict):
        return []
    if schema["type"] == "array":
        return paths_of(schema["items"], above)
    found = []
    for field in schema.get("fields", ()):
        for name in (field["name"], *field.get("aliases", ())):
            found += [(*above, name), *paths_of(field["type"], (*above, name))]
    return found


def arrays_of(schema: Any, above: PathKeys = ()) -> list[PathKeys]:
    """The paths of arrays that lie in records."""
    if isinstance(schema, list):
        return [path for branch in schema for path in arrays_of(branch, above)]
    if not isinstance(schema, dict):
        return []
    if schema["type"] == "array":
        return [above]
    return [
        p for field in schema.get("fields", ()) for p in arrays_of(field["type"], (*above, field["name"]))
    ]


@pytest.fixture(autouse=True, scope="module")
def _little_room() -> Iterator[None]:
    """Room for items that most messages exceed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(avro_schema, "FIRST_ROWS", 1)
        patched.setattr(avro_schema, "BYTES_AN_ITEM", 10**6)
        yield


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
@example(1, 4)
def test_programs_and_fastavro_read_the_same_columns_and_refuse_the_same_bytes(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = {
        "type": "record",
        "name": "Top",
        "fields": [
            {"name": f"a{i}", "type": any_type(rng, 4, f"T{i}")} for i in range(int(rng.integers(1, 6)))
        ],
    }
    schema = without_logical(drawn)
    many = any_of(rng, [None, *arrays_of(schema)])
    paths: list[PathKeys] = []
    compiled = None
    for path in rng.permutation(np.array([*paths_of(schema), ("missing",)], object)):
        wanted = [*paths, tuple(path)]
        if any(path != other and path == other[: len(path)] for other in wanted):
            continue  # a record is no field; one is inside of it
        try:
            compiled = AvroSchema([schema], wanted, many)
            paths = wanted
        except RefusedError:
            continue  # a type that no field can have
    if compiled is None:
        return
    messages = []
    for _ in range(count):
        written = BytesIO()
        schemaless_writer(written, parse_schema(schema), any_value(rng, schema))
        value = written.getvalue()
        kind = rng.random()
        if kind < 0.2:
            value = value[: int(rng.integers(0, len(value) + 1))]
        elif kind < 0.5:
            value = mutate(rng, value)
        messages.append(value)
    batch, refused = read(compiled, messages)
    part = wanted_part(schema, [*paths, *([many] if many else [])])
    for place, sentence in refused.items():
        # fastavro notices what is cut while it reads, not while it skips: there it counts to 2^63 if the bytes say so.
        bad = (
            plainly_read(messages[place], schema) is None
            or plainly_read(messages[place], schema, part) is None
        )
        assert bad or any(words in sentence for words in STRICTER), (messages[place], sentence)
    good = [value for place, value in enumerate(messages) if place not in refused]
    columns = batch.to_struct_array()
    columns.validate(full=True)
    rows = [plainly_read(value, schema, part) for value in good]
    assert repr(columns.to_pylist()) == repr(pa.array(rows, columns.type).to_pylist())
