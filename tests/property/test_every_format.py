"""No message of any format ends the stream: whatever comes, each is answered and its neighbours are taken."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from decoding import decoder, poll
from hostile_draws import any_of
from hostile_formats import good, makers_of
from hypothesis import given, settings
from hypothesis import strategies as st
from registry_server import Registry, confluent, serving

from freshet_graph.schemas.events import Reason
from freshet_graph.stream.decode.formats.interface import FORMATS

NAMES = sorted(FORMATS.all())


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def key_schema(registry: Registry) -> int:
    return registry.add('"long"')


def beside(name: str, key_format: str) -> dict[str, Any]:
    """A topic whose fields lie in the message and beside it."""
    in_row = "after." if name.startswith("debezium") else ""
    fields = {"src": f"{in_row}src", "dst": "$key", "t": "$timestamp", "label": "$partition"}
    fields |= {"features": ["$headers.f", "$headers.json.x"], "event_id": "$headers.id"}
    return {"fields": fields, "key_format": key_format}


KEYS = {
    "text": [b"5", b"5", b"a", b"", b"\xff", b"5" * 5000, None],
    "integer": [b"\0" * 8, b"\0" * 4, b"\0" * 5, b"", None],
    "json": [b"5", b'"5"', b"[", b'{"a":5}', b'1},"$key":{', b"", b"null", None],
    "avro": [
        confluent(1, b"\x0a"),
        confluent(1, b"\x0a"),
        confluent(1, b""),
        confluent(77, b"\x0a"),
        b"",
        None,
    ],
}
HEADERS = {
    "f": [None, b"1.5", b"x", b"1e400", b"\xff"],
    "json": [None, b'{"x":2}', b'{"x":"y"}', b"{", b'{"x":2'],
    "id": [None, b"a", b"\xff", b"b" * 300],
}


@pytest.mark.parametrize(
    ("name", "key_format"),
    [*product(NAMES, [None, "text"]), *product(["json"], ["integer", "json", "avro", "many"])],
)
def test_whatever_comes_is_answered_and_its_neighbours_are_taken(
    name: str, key_format: str | None, registry: Registry, key_schema: int
) -> None:
    assert key_schema == 1
    shape = {"registry": {"url": registry.url}, "features": {"node": 4, "edge": 2}}
    several = key_format == "many"
    more = {} if key_format is None else {"many": "."} if several else beside(name, key_format)
    topic = {"format": name, **more}
    readers = [decoder(topic=topic, ids=ids, **shape) for ids in ("int", "string")]
    good_key = {"text": b"5", "integer": b"\0" * 8, "json": b"5", "avro": confluent(1, b"\x0a")}
    kinds = [makers_of(reader._format, registry) for reader in readers]

    @settings(max_examples=60 if key_format is None else 25, deadline=None)
    @given(st.sampled_from([0, 1]), st.integers(0, 2**32), st.integers(1, 12))
    def check(ids: int, seed: int, count: int) -> None:
        rng, reader, makers = np.random.default_rng(seed), readers[ids], kinds[ids]
        written = reader._format
        values = [makers[any_of(rng, list(makers))](rng) for _ in range(count)]
        columns: dict[str, list[Any]] = {}
        if several:
            values = [
                any_of(rng, (b"[%b]", b"%b", b"[%b"))
                % any_of(rng, (b",", b"\n", b", ")).join(
                    makers[any_of(rng, list(makers))](rng) or b"null" for _ in range(int(rng.integers(0, 4)))
                )
                for _ in range(count)
            ]
        elif key_format is not None:
            good_one = good_key[key_format]
            if ids == 1 and key_format in ("json", "avro", "integer"):  # numbers, but ids are text
                good_one = b'"5"' if key_format == "json" else good_one
            keys = [any_of(rng, KEYS[key_format]) for _ in range(count)]
            headers = {
                header: [any_of(rng, cells) for _ in range(count)] for header, cells in HEADERS.items()
            }
            columns = {header: [None, *cells, None] for header, cells in headers.items()}
            columns |= {"key": [good_one, *keys, good_one], "timestamp": [1_100_000_000_000] * (count + 2)}
        raw = poll([good(written, 1), *values, good(written, 3)], **columns)
        batch = reader.decode(raw)
        batch.events.validate(full=True)
        taken, refused = batch.events["offset"].to_pylist(), batch.rejects["offset"].to_pylist()
        places = ["offset", "row"] if reader._many else ["offset"]
        order = [tuple(row.values()) for row in batch.events.select(places).to_pylist()]
        assert order == sorted(order), "events are in the order of the messages"
        assert taken[0] == 100
        assert taken[-1] == raw.offsets[-1].as_py()
        assert len({*taken, *refused}) + batch.tombstones == len(raw.values)
        assert not (written.atomic and {*taken} & {*refused}), "events of a message stand or fall together"
        reasons = {*batch.rejects["reason"].to_pylist()}
        assert reasons <= {*Reason, *written.reasons} - {Reason.DECODER_ERROR}, "its own code raises nothing"
        assert all(batch.rejects["sentence"].to_pylist())
        parts = pa.Table.from_batches([part.events for part in reader.batches(raw)])
        assert parts.equals(pa.Table.from_batches([batch.events]))

    check()
