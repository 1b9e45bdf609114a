"""Refused messages are told by reason with one example each: in a run's totals, from the log, by inspect."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from log_events import SECOND, event, poll, stream_config
from log_lines import error_of
from typer.testing import CliRunner

from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.schemas.store import LogHeader, Position
from freshet_graph.stream.cli import app
from freshet_graph.stream.cluster.job import JobTotals
from freshet_graph.stream.commands import run as run_module
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.service.progress import StatusLine
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.log import refusals
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.refusals import EXAMPLE_CHARACTERS, Refused, example_of, newest_refused
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place

HEADER = LogHeader(graph="g", interval_us=SECOND, ids="int")


def rejects(*rows: tuple[int, str, str], row: int | None = None) -> pa.Table:
    """Rows of offset, reason and sentence."""
    return pa.Table.from_pylist(
        [
            {"topic": "a", "partition": 3, "offset": offset, "row": row, "reason": reason, "sentence": sentence, "raw": b"{"}
            for offset, reason, sentence in rows
        ],
        schema=REJECT_SCHEMA,
    )  # fmt: skip


def refuse(writer: LogWriter, offset: int, *reasons: str) -> None:
    writer.commit(
        positions={("a", 3): Position(topic="a", partition=3, next=offset + 1)},
        rejects=rejects(*((offset, reason, f"sentence {offset}") for reason in reasons)),
        refused=Counter(reasons),
    )


def test_an_example_says_where_the_message_is_and_what_is_wrong_with_it() -> None:
    table = rejects((7, "not_json", "it is not JSON"), (8, "bad_id", "src\n is  empty"), (9, "bad_id", "no"))
    assert example_of(table, "bad_id") == "a[3] offset 8: src is empty"
    assert example_of(rejects((7, "bad_id", "no"), row=2), "bad_id") == "a[3] offset 7 row 2: no"
    assert example_of(table, "late") is None
    long = example_of(rejects((7, "bad_id", "x" * 10_000)), "bad_id")
    assert long is not None and len(long) == EXAMPLE_CHARACTERS


def test_the_newest_of_each_reason_is_found_without_reading_all(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter.open(place, HEADER) as writer:
        for offset in range(200):
            refuse(writer, offset, "not_json", *(["bad_id"] if offset in (3, 17) else []))
            if offset % 5 == 0:
                writer.commit()
    reads: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(refusals, name)

        def read(*arguments: Any, **more: Any) -> Any:
            reads[name] += 1
            return real(*arguments, **more)

        return read

    for name in ("read_record", "read_table"):
        monkeypatch.setattr(refusals, name, counted(name))
    log = LogReader(place)
    assert newest_refused(log, log.last.refused) == {  # type: ignore[union-attr]
        "not_json": Refused(200, "a[3] offset 199: sentence 199"),
        "bad_id": Refused(2, "a[3] offset 17: sentence 17"),
    }
    assert reads["read_table"] == 2
    assert reads["read_record"] <= 2 * 10


def test_inspect_shows_them_and_where_a_file_is_no_longer_kept_the_count_alone(place: Place) -> None:
    with LogWriter.open(place, HEADER) as writer:
        refuse(writer, 4, "not_json", "not_json")
        refuse(writer, 5, "not_json", "bad_id")
        assert writer.last is not None and writer.last.rejects is not None
        path = place / "log" / writer.last.rejects.path
    found = inspect(place)
    assert found["refused"] == 4
    assert found["refused_by_reason"] == {
        "not_json": {"count": 3, "example": "a[3] offset 5: sentence 5"},
        "bad_id": {"count": 1, "example": "a[3] offset 5: sentence 5"},
    }
    assert list(found["refused_by_reason"]) == ["not_json", "bad_id"], "most frequent first"
    if not isinstance(path, Path):
        return  # a bucket's has a copy in the cache
    path.unlink()
    assert inspect(place)["refused_by_reason"]["not_json"] == {"count": 3, "example": None}


def test_inspect_prints_a_row_for_each_reason(tmp_path: Path) -> None:
    with LogWriter.open(tmp_path, HEADER) as writer:
        refuse(writer, 4, "not_json")
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path)], env={"COLUMNS": "200"}).stdout
    assert "refused: not_json" in shown
    assert "1, such as a[3] offset 4: sentence 4" in shown


def test_a_jobs_totals_have_the_newest_example_and_no_late_event(tmp_path: Path) -> None:
    config = stream_config(str(tmp_path), late="dead-letter")
    metrics = StreamMetrics(config)
    with LogWriter.open(tmp_path, log_header(config)) as writer:
        sink = SnapshotSink(writer, config, observer=metrics)
        sink.offer(poll("a", 0, [(0, None), (1, [event(1, 2, 5 * SECOND)]), (2, None)], first=0, end=3))
        sink.seal_all()
        sink.offer(poll("a", 0, [(3, None), (4, [event(1, 2, 0)]), (5, None)], first=3, end=6))
        assert metrics.totals.refused_by_reason["not_json"].count == 2, "not durable yet"
        sink.flush()
    assert metrics.totals.refused_by_reason == {"not_json": Refused(4, "a[0] offset 3: it is not JSON")}
    assert (metrics.totals.refused, metrics.totals.late) == (4, 1)


def test_totals_from_a_log_are_of_what_was_refused_since_they_began(tmp_path: Path) -> None:
    totals = JobTotals(str(tmp_path))
    with LogWriter.open(tmp_path, HEADER) as writer:
        refuse(writer, 1, "not_json", "bad_id")
        totals.begin()
        assert totals.refused_by_reason == {}
        refuse(writer, 2, "not_json")
        totals.refresh()
    assert totals.refused_by_reason == {"not_json": Refused(1, "a[3] offset 2: sentence 2")}


class OneLook:
    """Asks for the status line once, as a terminal would."""

    line = ""

    def __init__(self, line: Callable[[], StatusLine]) -> None:
        self._line = line

    def __enter__(self) -> None:
        OneLook.line = self._line().sentence

    def __exit__(self, *_: object) -> None:
        pass


def test_the_status_line_has_each_reason_with_an_example(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metrics = StreamMetrics(stream_config(str(tmp_path)))
    metrics.refused("a", "not_json", 1_200, "a[0] offset 7: it is not JSON")
    metrics.refused("a", "bad_id", 1, f"a[0] offset 9: {'no such id ' * 40}")

    class Job:
        def run(self) -> str:
            return "ran"

        def lag(self) -> int:
            return 0

        def lane_lags(self) -> dict[str, int]:
            return {}

        def interrupt(self) -> None:
            pass

    monkeypatch.setattr(run_module, "Display", OneLook)
    with run_module.ExitStack() as signals:
        assert run_module._watched("g", Job(), metrics.totals, signals) == "ran"  # type: ignore[arg-type,comparison-overlap]
    assert (
        "refused 1,201 (not_json 1,200: a[0] offset 7: it is not JSON; bad_id 1: a[0] offset 9: no such"
        in OneLook.line
    )
    assert len(OneLook.line) < 350


def figures(**more: Any) -> dict[str, Any]:
    """What a run gave that refused two messages and nothing else."""
    reasons = {"feature_width": {"count": 2, "example": "a[0] offset 0: features has 2 values"}}
    return {
        "snapshots": 0, "events": 0, "refused": 2, "late": 0, "seconds": 0.1, "events_per_s": 0.0, "ended": "idle",
        "duplicates": 0, "in_history": 0, "refused_by_reason": reasons, "held": [], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, 1),
        ({"late": 3}, 1),  # under late: dead-letter none of these is in the log either
        ({"events": 1}, 0),
        ({"duplicates": 1}, 0),
        ({"in_history": 1}, 0),
        ({"refused": 0, "refused_by_reason": {}}, 0),
        ({"ended": "stopped"}, 0),
    ],
)
def test_an_idle_run_that_refused_everything_ends_with_code_1_and_its_figures(
    changed: dict[str, Any], code: int, tmp_path: Path, clean_environment: pytest.MonkeyPatch
) -> None:
    content = {
        "graph": "g", "store": "s", "kafka": {"bootstrap": "b:1", "topics": [{"name": "a"}]}, "snapshots": {"interval_s": 1},
    }  # fmt: skip
    (tmp_path / "stream.yaml").write_text(json.dumps(content), encoding="utf-8")
    clean_environment.setattr(run_module, "run_job", lambda config, **options: figures(**changed))
    for extra in (["--json"], []):
        shown = CliRunner().invoke(app, ["run", "--config", str(tmp_path / "stream.yaml"), *extra])
        assert shown.exit_code == code
        assert shown.stdout
        if code:
            told = error_of(shown.stderr)
            assert told.startswith(
                "everything that was read was refused: feature_width 2 (a[0] offset 0: features has 2 values). "
            )
            assert "choose a new store" in told
        if extra:
            assert json.loads(shown.stdout) == figures(**changed)
        elif "refused_by_reason" not in changed:
            assert "2, such as a[0] offset 0" in " ".join(shown.stdout.split())
