"""Files of a history: what their times say, and rows as polls of a topic partition from any row on."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_events import SECOND, stream_config

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.store import CommitRecord, HistoryEnd, HistoryFile, HistoryRecord, Position
from freshet_graph.stream.commands.backfill import _place, _time_us
from freshet_graph.stream.decode.history_file import Survey, count_from, read_polls, survey
from freshet_graph.stream.decode.validate import Rules
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.snapshots.border import HISTORY, Border
from freshet_graph.stream.store.log.commits import fingerprint
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.log import verify_log

RULES = Rules("int", min_us=0, max_us=1_000 * SECOND)


def config(tmp_path: Path) -> StreamConfig:
    return stream_config(str(tmp_path / "store"))


def file(tmp_path: Path, *t: float | None, name: str = "past.parquet") -> Path:
    """One row a time; src is the row's number."""
    table = pa.table({"src": range(len(t)), "dst": [7] * len(t), "t": pa.array(t, pa.float64())})
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("src,dst,t\n" + "".join(f"{i},7,{'' if s is None else s}\n" for i, s in enumerate(t)))
    else:
        pq.write_table(table, path, row_group_size=3)
    return path


def polls(
    path: Path, tmp_path: Path, *, start: int = 0, until_s: float = 999, first: int = 0
) -> list[MicroBatch]:
    return list(
        read_polls(
            path,
            config(tmp_path),
            RULES,
            key=HISTORY,
            first=first,
            start=start,
            until_us=round(until_s * SECOND),
        )
    )


def rows(found: list[MicroBatch]) -> list[tuple[int, int]]:
    """(offset, src) of the accepted events."""
    pairs = []
    for batch in found:
        pairs += list(zip(batch.events["offset"].to_pylist(), batch.events["src"].to_pylist(), strict=True))
    return pairs


@pytest.mark.parametrize("name", ["past.parquet", "past.csv"])
def test_a_survey_tells_the_span_and_the_disorder_of_what_is_within_the_bounds(
    tmp_path: Path, name: str
) -> None:
    path = file(tmp_path, 5, 3, None, 9, 10**9, 4, 9, 8.5, -1, name=name)
    assert survey(path, RULES) == Survey(
        rows=9, first_us=3 * SECOND, last_us=9 * SECOND, disorder_us=5 * SECOND
    )
    assert count_from(path, RULES, 8 * SECOND) == 3
    empty = file(tmp_path, name=f"empty-{name}")
    assert survey(empty, RULES) == Survey(rows=0, first_us=None, last_us=None, disorder_us=0)


@pytest.mark.parametrize("name", ["past.parquet", "past.csv"])
@pytest.mark.parametrize("start", [0, 1, 3, 4, 7, 8])
def test_reading_begins_at_any_row(tmp_path: Path, name: str, start: int) -> None:
    path = file(tmp_path, 1, 2, 3, 4, 5, 6, 7, 8, name=name)
    found = polls(path, tmp_path, start=start, first=100)
    assert rows(found) == [(100 + i, i) for i in range(start, 8)]
    if found:
        assert (found[0].first_offset, found[-1].end_offset) == (100 + start, 108)
    assert all(a.end_offset == b.first_offset for a, b in pairwise(found))


def test_rows_from_the_border_on_are_nothing_and_wrong_ones_before_it_are_rejects(tmp_path: Path) -> None:
    path = file(tmp_path, 1, 10, None, 4, 10**9, 2)
    found = polls(path, tmp_path, until_s=4)
    assert rows(found) == [(0, 0), (5, 5)]
    rejects = [row for batch in found for row in batch.rejects.to_pylist()]
    assert [(row["topic"], row["partition"], row["offset"], row["reason"]) for row in rejects] == [
        (*HISTORY, 2, "missing_field"),
        (*HISTORY, 4, "time_out_of_bounds"),
    ]
    assert json.loads(rejects[0]["raw"])["src"] == 2


def test_a_csv_cell_that_is_no_number_is_its_rows_reject(tmp_path: Path) -> None:
    cells = [
        "1,2,5,,", "x,2,6,,", "1,2,soon,,", "1,2x,7,,", "1,2,1e1,0.5,", "1,2,8,heavy,", '1,2,9,,"[1, b]"', "1,,9,,\"[1, 2]\"",
    ]  # fmt: skip
    path = tmp_path / "past.csv"
    path.write_text("src,dst,t,weight,features\n" + "\n".join(cells) + "\n")
    content = stream_config(str(tmp_path / "store")).model_dump(exclude_unset=True)
    config = StreamConfig(**content | {"features": {"node": 2, "edge": 2}, "time_bounds": (0, None)})
    rules = Rules.of(config, 10**18)
    assert survey(path, rules).rows == 8
    found = list(read_polls(path, config, rules, key=HISTORY, first=0, start=0, until_us=10**15))
    assert [row["offset"] for batch in found for row in batch.events.to_pylist()] == [0, 4, 7]
    rejects = [row for batch in found for row in batch.rejects.to_pylist()]
    assert [(row["offset"], row["reason"], row["sentence"]) for row in rejects] == [
        (1, "bad_id", "column src has 'x', expected a number"),
        (
            2,
            "wrong_type",
            "column t has 'soon', expected a number of seconds or a time as RFC 3339 writes it",
        ),
        (3, "bad_id", "column dst has '2x', expected a number"),
        (5, "wrong_type", "column weight has 'heavy', expected a number"),
        (6, "wrong_type", "column features has '[1, b]', expected [0.5, 1.0]"),
    ]
    raw = [json.loads(row["raw"]) for row in rejects]
    assert [(row["src"], row["dst"], row["t"], row["weight"], row["features"]) for row in raw] == [
        ("x", 2, 6_000_000, 1.0, None),
        (1, 2, "soon", 1.0, None),
        (1, "2x", 7_000_000, 1.0, None),
        (1, 2, 8_000_000, "heavy", None),
        (1, 2, 9_000_000, 1.0, "[1, b]"),
    ], "as they stand in the file"
    late = read_polls(path, config, rules, key=HISTORY, first=0, start=5, until_us=10**15)
    assert [row["offset"] for batch in late for row in batch.rejects.to_pylist()] == [5, 6]


def test_a_file_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 but nothing else")
    with pytest.raises(Failure, match=r"x.parquet cannot be read"):
        survey(tmp_path / "x.parquet", RULES)
    pq.write_table(pa.table({"src": [1], "t": [1.0]}), tmp_path / "y.parquet")
    with pytest.raises(Failure, match=r"y.parquet: column dst is missing"):
        survey(tmp_path / "y.parquet", RULES)


@pytest.mark.parametrize(
    ("text", "t_us"),
    [("0", 0), ("1.5", 1_500_000), ("-2", -2_000_000), ("1970-01-02T00:00:00Z", 86_400_000_000),
     ("1970-01-01T01:00:00.25+01:00", 250_000)],
)  # fmt: skip
def test_until_takes_seconds_and_dates(text: str, t_us: int) -> None:
    assert _time_us(text) == t_us


@pytest.mark.parametrize(
    "text", ["yesterday", "1970-01-02T00:00:00", "", "nan", "1e400", "9" * 30, "--5", "²"]
)
def test_until_without_a_meaning_is_a_sentence(text: str) -> None:
    with pytest.raises(Failure, match=r"--until"):
        _time_us(text)


def test_offsets_are_places() -> None:
    assert _place("a.b/3=17") == (("a.b", 3), 17)
    for text in ("a=3", "a/b=3", "a/1=", "a/1=-3", "/1=3", "a/²=0", "a/0=²"):
        with pytest.raises(Failure, match=r"--offset takes topic/partition=number"):
            _place(text)


def history(rows_in_all: int) -> HistoryRecord:
    known = HistoryFile(name="past.parquet", rows=rows_in_all, bytes=1, checksum="0")
    end = HistoryEnd(topic="a", partition=0, start=None, end=5)
    return HistoryRecord(files=[known], until_us=10, rows=rows_in_all, after=0, disorder_us=0, ends=[end])


def test_the_border_is_an_event_time_and_an_offset() -> None:
    border = Border(history(3))
    offset, t = np.array([3, 4, 4, 5]), np.array([9, 9, 10, 9])
    mask = border.in_history(("a", 0), offset, t)
    assert mask is not None and mask.tolist() == [True, True, False, False]
    assert border.in_history(("a", 1), offset, t) is None
    assert border.in_history(("a", 0), offset + 2, t) is None
    assert Border(None).in_history(("a", 0), offset, t) is None


def test_a_file_is_known_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    one, two = file(tmp_path, 1, 2, name="1.parquet"), file(tmp_path, 1, 3, name="2.parquet")
    first = fingerprint(one, 2)
    moved = fingerprint(one.rename(tmp_path / "3.parquet"), 2)
    assert (first.bytes, first.checksum) == (moved.bytes, moved.checksum)
    assert fingerprint(two, 2).checksum != first.checksum


def test_verify_finds_a_history_that_is_gone_damaged_or_too_short(tmp_path: Path) -> None:
    with LogWriter.open(tmp_path / "store", log_header(config(tmp_path))) as writer:
        writer.begin_with(history(3))
        record: CommitRecord = writer.commit(
            positions={HISTORY: Position(topic=HISTORY[0], partition=HISTORY[1], next=3)}
        )
    assert record.n == 0
    assert verify_log(tmp_path / "store").problems == []
    path = tmp_path / "store" / "log" / "history.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"rows":3', b'"rows":2'))
    [problem] = verify_log(tmp_path / "store").problems
    assert "history.json does not match its own checksum" in problem
    path.unlink()
    [problem] = verify_log(tmp_path / "store").problems
    assert "history.json is missing" in problem
