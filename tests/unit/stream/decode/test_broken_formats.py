"""A format whose code fails: the message at fault is refused by name, its neighbours are taken, and nothing ends."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from broken_format import FAULTS, NAME, BrokenFormat, asking
from decoding import GOOD, decoder, poll
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.stream.decode import decoder as decoder_module
from freshet_graph.stream.decode.formats.interface import FORMATS, UnavailableError


@pytest.fixture(autouse=True, scope="module")
def _installed() -> Iterator[None]:
    FORMATS.registered[NAME] = BrokenFormat
    yield
    del FORMATS.registered[NAME]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_format_raises_or_forgets_is_the_dead_letter_of_one_message(fault: str) -> None:
    batch = decoder(topic={"format": NAME}).decode(poll([GOOD, GOOD, None, asking(fault), GOOD, b"{"]))
    assert batch.events["offset"].to_pylist() == [100, 102, 108]
    wrong, other = batch.rejects.to_pylist()
    assert (wrong["topic"], wrong["partition"], wrong["offset"], wrong["row"]) == ("edges", 3, 106, None)
    assert (wrong["reason"], wrong["raw"]) == ("decoder_error", asking(fault))
    assert wrong["sentence"].startswith("the code of format broken failed: ")
    assert (other["offset"], other["reason"]) == (110, "not_json")
    assert batch.tombstones == 1


def test_the_sentence_names_the_error_and_its_line() -> None:
    batch = decoder(topic={"format": NAME}).decode(poll([asking("a missing key")]))
    (sentence,) = batch.rejects["sentence"].to_pylist()
    assert sentence.startswith("the code of format broken failed: KeyError: 'rows' (broken_format.py:")


def test_the_line_is_the_formats_own_if_a_library_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = decoder(topic={"format": NAME})
    monkeypatch.setattr("broken_format.JsonFormat.read", lambda *_: pa.array([10**20], pa.int64()))
    batch = failing.decode(poll([GOOD]))
    (sentence,) = batch.rejects["sentence"].to_pylist()
    assert "OverflowError" in sentence
    assert "(broken_format.py:" in sentence


def test_neighbours_are_prepared_even_if_preparing_one_message_fails() -> None:
    given_ = decoder(topic={"format": NAME})
    prepared: list[int] = []
    prepare = given_._format.prepare
    given_._format.prepare = lambda values: prepare(values) or prepared.append(len(values))  # type: ignore[method-assign, func-returns-value]
    batch = given_.decode(poll([GOOD, asking("in prepare"), *[GOOD] * 6]))
    assert sum(prepared) == 7
    assert batch.events.num_rows == 8


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("a file is away", "descriptors.bin: No such file or directory (ENOENT)"),
        ("no answer in time", "timed out"),
        ("a sentence", "topic edges: there are no descriptors. Name them"),
    ],
)
def test_an_obstacle_to_preparing_keeps_all_messages(fault: str, sentence: str) -> None:
    given_, messages = decoder(topic={"format": NAME}), poll([GOOD, asking(fault), GOOD])
    for read in (given_.prepare, given_.decode):
        with pytest.raises(UnavailableError) as caught:
            read(messages)
        assert str(caught.value) == sentence


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from(list(FAULTS))), max_size=25), st.integers(1, 6))
def test_any_number_of_messages_at_fault_costs_no_other(faults: list[str | None], rows: int) -> None:
    values = [GOOD if fault is None else asking(fault) for fault in faults]
    offsets = [100 + 2 * i for i in range(len(values))]
    expected = [offset for offset, fault in zip(offsets, faults, strict=True) if fault is None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module, "ROWS_AT_ONCE", rows)
        batches = list(decoder(topic={"format": NAME}).batches(poll(values)))
    assert [o for batch in batches for o in batch.events["offset"].to_pylist()] == expected
    rejects = [row for batch in batches for row in batch.rejects.to_pylist()]
    assert [row["offset"] for row in rejects] == [o for o in offsets if o not in expected]
    assert {row["reason"] for row in rejects} <= {"decoder_error"}
    whole = decoder(topic={"format": NAME}).decode(poll(values))
    assert pa.Table.from_batches([whole.events]).equals(
        pa.Table.from_batches([batch.events for batch in batches])
    )
