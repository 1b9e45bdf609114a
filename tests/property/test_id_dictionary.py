"""The id dictionary against a plain dict: order of first appearance, growth, restart, taking ids back."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.schemas.events import IdKind, id_type
from freshet_graph.stream.snapshots import string_dictionary
from freshet_graph.stream.snapshots.dictionary import IntDictionary, new_dictionary

INT = st.one_of(
    st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, 0, -1])
)
STRING = st.one_of(st.sampled_from(["", "a", "b", "ü", "a\x00b"]), st.text(max_size=5))


def edges(ids: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[tuple[Any, Any]]]]:
    return st.lists(st.lists(st.tuples(ids, st.one_of(st.none(), ids)), max_size=30), max_size=6)


def plain_encode(known: dict[Any, int], rows: list[tuple[Any, Any]]) -> tuple[list[int], list[int]]:
    """The twin of both dictionaries."""
    dense: tuple[list[int], list[int]] = ([], [])
    for src, dst in rows:
        dense[0].append(known.setdefault(src, len(known)))
        dense[1].append(-1 if dst is None else known.setdefault(dst, len(known)))
    return dense


def columns(rows: list[tuple[Any, Any]], kind: IdKind, chunk: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    src, dst = ([row[i] for row in rows] for i in (0, 1))
    return tuple(
        pa.chunked_array([column[i : i + chunk] for i in range(0, len(column), chunk)], type=id_type(kind))
        for column in (src, dst)
    )  # type: ignore[return-value]


@pytest.mark.parametrize(("kind", "ids"), [("int", INT), ("string", STRING)])
def test_dense_ids_are_those_of_a_plain_dict_also_after_restart_and_taking_back(
    kind: IdKind, ids: st.SearchStrategy[Any]
) -> None:
    @given(edges(ids), st.integers(1, 7), st.data())
    @settings(max_examples=80, deadline=None)
    def check(batches: list[list[tuple[Any, Any]]], chunk: int, data: st.DataObject) -> None:
        dictionary, known = new_dictionary(kind), dict[Any, int]()
        for rows in batches:
            src, dst = dictionary.encode(*columns(rows, kind, chunk))
            assert (src.tolist(), dst.tolist()) == plain_encode(known, rows)
            if data.draw(st.booleans()):
                size = data.draw(st.integers(0, len(known)))
                dictionary.truncate(size)
                known = dict(list(known.items())[:size])
            if data.draw(st.booleans()):
                again = new_dictionary(kind)
                again.extend(dictionary.ids())
                dictionary = again
            assert dictionary.size == len(known)
            assert dictionary.ids().to_pylist() == list(known)
            assert dictionary.ids(len(known) // 2).to_pylist() == list(known)[len(known) // 2 :]

    check()


def test_the_hash_table_grows_through_many_ids_and_shrinks_back() -> None:
    random = np.random.default_rng(1)
    src, dst = random.integers(-(2**63), 2**63 - 1, (2, 50_000))
    dictionary, known = IntDictionary(), dict[Any, int]()
    wanted = plain_encode(known, list(zip(src.tolist(), dst.tolist(), strict=True)))
    found = dictionary.encode(pa.chunked_array([src]), pa.chunked_array([dst]))
    assert (found[0].tolist(), found[1].tolist()) == wanted
    dictionary.truncate(10)
    again = dictionary.encode(pa.chunked_array([src]), pa.chunked_array([dst]))
    assert np.array_equal(again, found)


@pytest.mark.parametrize("kind", ["int", "string"])
def test_a_table_that_has_grown_finds_the_older_ids_once_the_newer_are_taken_back(kind: IdKind) -> None:
    ids = [number if kind == "int" else str(number) for number in np.random.default_rng(3).permutation(900)]
    dictionary, rows = new_dictionary(kind), [(each, None) for each in ids]
    dictionary.encode(*columns(rows, kind, 900))
    dictionary.truncate(450)
    assert dictionary.encode(*columns(rows[:450], kind, 900))[0].tolist() == list(range(450))


def test_texts_of_one_hash_are_different_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("_densify", "_remove_newest"):
        monkeypatch.setattr(string_dictionary, kernel, getattr(string_dictionary, kernel).py_func)
    monkeypatch.setattr(string_dictionary, "siphash", lambda *_: (np.uint64(5), np.uint64(0)))
    dictionary, rows = new_dictionary("string"), [("aa", "ab"), ("b", "aa"), ("ab", "ba")]
    src, dst = dictionary.encode(*columns(rows, "string", 2))
    assert (src.tolist(), dst.tolist()) == ([0, 2, 1], [1, 0, 3])
    dictionary.truncate(2)
    assert dictionary.encode(*columns(rows[2:], "string", 2))[0].tolist() == [1]


@pytest.mark.parametrize("kind", ["int", "string"])
def test_an_id_that_appears_twice_in_the_log_is_refused(kind: IdKind) -> None:
    values = [1, 2, 1] if kind == "int" else ["a", "b", "a"]
    with pytest.raises(ValueError, match="twice"):
        new_dictionary(kind).extend(pa.array(values, id_type(kind)))
