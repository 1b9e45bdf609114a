"""No message of any format ends the stream: whatever comes, each is answered and its neighbours are taken."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from decoding import decoder, poll
from hostile_draws import any_of
from hostile_formats import good, makers_of
from hypothesis import given, settings
from hypothesis import strategies as st
from registry_server import Registry, serving

from freshet_graph.schemas.events import Reason
from freshet_graph.stream.decode.formats.interface import FORMATS

NAMES = sorted(FORMATS.all())


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


@pytest.mark.parametrize("name", NAMES)
def test_whatever_comes_is_answered_and_its_neighbours_are_taken(name: str, registry: Registry) -> None:
    shape = {"registry": {"url": registry.url}, "features": {"node": 4, "edge": 2}}
    readers = [decoder(topic={"format": name}, ids=ids, **shape) for ids in ("int", "string")]
    kinds = [makers_of(reader._format, registry) for reader in readers]

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from([0, 1]), st.integers(0, 2**32), st.integers(1, 12))
    def check(ids: int, seed: int, count: int) -> None:
        rng, reader, makers = np.random.default_rng(seed), readers[ids], kinds[ids]
        written = reader._format
        values = [makers[any_of(rng, list(makers))](rng) for _ in range(count)]
        raw = poll([good(written, 1), *values, good(written, 3)])
        batch = reader.decode(raw)
        batch.events.validate(full=True)
        taken, refused = batch.events["offset"].to_pylist(), batch.rejects["offset"].to_pylist()
        places = ["offset", "row"] if written.many else ["offset"]
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
