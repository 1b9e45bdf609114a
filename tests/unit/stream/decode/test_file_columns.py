"""Files as others have them: columns of other names, tabs, times in RFC 3339; the same through every command."""

import gzip
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from streaming import configuration
from structlog.testing import capture_logs
from typer.testing import CliRunner

from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.stream.cli import app
from freshet_graph.stream.decode.columns import read_times
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.decode.times import rfc3339_to_us
from freshet_graph.stream.decode.validate import Faults
from freshet_graph.stream.kafka.producer import Replayed
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.cli import app as trainer_app

COLUMNS = "src=user,dst=item,t=ts"
T0 = 1_700_000_000
ROWS = 300


def rows() -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(0)
    return [(int(a), int(b) + 40, T0 + 60 * i) for i, (a, b) in enumerate(rng.integers(0, 40, (ROWS, 2)))]


def moment(t: int) -> str:
    return datetime.fromtimestamp(t, UTC).isoformat().replace("+00:00", "Z")


def plain(folder: Path) -> Path:
    src, dst, t = zip(*rows(), strict=True)
    pq.write_table(pa.table({"src": src, "dst": dst, "t": t}), folder / "plain.parquet")
    return folder / "plain.parquet"


def text(separator: str) -> str:
    lines = [separator.join(["item", "t", "user", "ts"])]  # a t of its own that nobody named
    lines += [separator.join([str(dst), "-", str(src), moment(t)]) for src, dst, t in rows()]
    return "\n".join(lines) + "\n"


def foreign(folder: Path, kind: str) -> Path:
    path = folder / f"foreign.{kind}"
    src, dst, t = zip(*rows(), strict=True)
    table = pa.table({"item": dst, "t": ["-"] * ROWS, "user": src, "ts": [moment(value) for value in t]})
    match kind:
        case "csv" | "tsv":
            path.write_text(text("\t" if kind == "tsv" else ","))
        case "tsv.gz":
            path.write_bytes(gzip.compress(text("\t").encode()))
        case "parquet":
            pq.write_table(table, path, row_group_size=100)
        case "timestamp.parquet":
            times = pa.array([value * 1000 for value in t], pa.timestamp("ms", "UTC"))
            pq.write_table(table.set_column(3, "ts", times), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "tsv.gz", "parquet", "timestamp.parquet"])
def test_a_file_of_other_names_is_the_same_events(kind: str, tmp_path: Path) -> None:
    read = read_events(foreign(tmp_path, kind), options=FileOptions(columns=COLUMNS))
    assert read.events.equals(read_events(plain(tmp_path)).events)


def call(application: Any, *arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(application, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return {key: value for key, value in found.items() if "second" not in key and not key.endswith("_s")}


@pytest.mark.parametrize(
    "command",
    [
        ["partition", "--algorithm", "distdy", "--parts", "2", "--snapshots", "3"],
        ["savings", "--snapshots", "3", "--parts", "2"],
    ],
    ids=lambda command: command[0],
)
def test_partition_and_savings_take_columns(command: list[str], tmp_path: Path) -> None:
    name, *options = command
    expected = call(app, name, plain(tmp_path), *options)
    assert call(app, name, foreign(tmp_path, "tsv"), *options, "--columns", COLUMNS) == expected


def test_evaluate_takes_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshet_graph.trainer.commands.evaluate.configure_logs", lambda **_: None)
    keys = {
        "lane": "hash",
        "interval_s": 3600,
        "optimisation": {"epochs": 1},
        "checkpoint": str(tmp_path / "checkpoints"),
    }
    (tmp_path / "trainer.yaml").write_text(yaml.safe_dump(keys))
    options = ["evaluate", "--config", tmp_path / "trainer.yaml", "--data"]
    with capture_logs():
        expected = call(trainer_app, *options, plain(tmp_path))
        found = call(trainer_app, *options, foreign(tmp_path, "csv"), "--columns", COLUMNS)
    for run in (expected, found):
        del run["runs"], run["peak_mib"]
    assert found == expected


def test_replay_takes_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[pa.Table] = []

    class Done:
        sent, seconds, events_per_s = ROWS, 1.0, float(ROWS)

    def send(events: pa.Table, **_: object) -> type[Done]:
        sent.append(events)
        return Done

    monkeypatch.setattr("freshet_graph.stream.kafka.producer.replay", send)
    monkeypatch.setattr("freshet_graph.stream.kafka.producer.greet", lambda *_: None)
    options = ["--bootstrap", "127.0.0.1:1", "--topic", "edges"]
    call(app, "replay", plain(tmp_path), *options)
    call(app, "replay", foreign(tmp_path, "tsv"), *options, "--columns", COLUMNS)
    assert sent[0].equals(sent[1])


def read_by(command: str, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Exit code and log of a command that reads a file of events."""
    monkeypatch.setattr("freshet_graph.stream.kafka.producer.replay", lambda *_, **__: Replayed(ROWS, 1.0))
    monkeypatch.setattr("freshet_graph.stream.kafka.producer.greet", lambda *_: None)
    monkeypatch.setattr("freshet_graph.stream.job.backfill.topic_bounds", lambda _: [])
    monkeypatch.setattr("freshet_graph.stream.job.backfill._present_us", lambda _: round(time.time() * 1e6))
    content = configuration(folder / "store", "127.0.0.1:1", "edges", snapshots={"interval_s": 3600})
    (folder / "stream.yaml").write_text(yaml.safe_dump(content))
    keys = {
        "lane": "hash",
        "interval_s": 3600,
        "optimisation": {"epochs": 1},
        "checkpoint": str(folder / "checkpoints"),
    }
    (folder / "trainer.yaml").write_text(yaml.safe_dump(keys))
    application, *arguments = {
        "partition": (app, "partition", str(file), "--algorithm", "hash", "--parts", "2"),
        "savings": (app, "savings", str(file), "--parts", "2"),
        "replay": (app, "replay", str(file), "--bootstrap", "127.0.0.1:1", "--topic", "edges"),
        "backfill": (app, "backfill", str(file), "--config", str(folder / "stream.yaml")),
        "evaluate": (trainer_app, "evaluate", "--config", str(folder / "trainer.yaml"), "--data", str(file)),
    }[command]
    done = CliRunner().invoke(application, [*arguments, "--json"])
    if done.exit_code == 0:
        json.loads(done.stdout)  # the log is beside the result
    if command not in ("backfill", "evaluate"):  # which have a log; others print sentences
        named = [line for line in done.stderr.splitlines() if str(file) in line]
        assert all(line.startswith(("warning: ", "error: ")) for line in named), named
    return done.exit_code, done.stderr


READERS = pytest.mark.parametrize("command", ["partition", "savings", "replay", "backfill", "evaluate"])


@READERS
def test_what_is_not_read_of_a_file_and_times_that_are_too_coarse_are_said(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, dst, t = (np.array(column) for column in zip(*rows(), strict=True))
    features = {f"f{number}": np.ones(ROWS) for number in range(7)}
    table = pa.table({"src": src, "dst": dst, "t": t.astype(np.float32), **features})
    pq.write_table(table, tmp_path / "narrow.parquet")
    code, log = read_by(command, tmp_path / "narrow.parquet", tmp_path, monkeypatch)
    assert code == 0, log
    assert log.count("columns f0, f1, f2, f3, f4 and 2 more are not read") == 1
    assert log.count("column t is float32, whose values lie 128 s apart") == 1
    assert "off by up to 64 s. Write the column as float64 or int64" in log
    (tmp_path / "plain").mkdir()
    code, log = read_by(command, plain(tmp_path), tmp_path / "plain", monkeypatch)
    assert code == 0, log
    assert "not read" not in log
    assert "apart" not in log


@READERS
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_milliseconds_in_a_column_of_seconds_are_named(
    command: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, dst, t = (np.array(column) for column in zip(*rows(), strict=True))
    for per_s, unit in (
        (1_000, "milliseconds. Give --time-unit ms"),
        (1_000_000, "microseconds or nanoseconds. Give --time-unit us or ns"),
    ):
        table = pa.table({"src": src, "dst": dst, "t": t * per_s})
        file = tmp_path / f"fine.{kind}"
        pacsv.write_csv(table, file) if kind == "csv" else pq.write_table(table, file)
        code, log = read_by(command, file, tmp_path, monkeypatch)
        assert code == 1
        assert f"It looks like {unit}" in log


@pytest.mark.parametrize("kind", ["tsv", "parquet"])
def test_backfill_takes_columns_and_keeps_to_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshet_graph.stream.commands.backfill.configure_logs", lambda **_: None)
    monkeypatch.setattr("freshet_graph.stream.job.backfill.topic_bounds", lambda _: [])

    def begin(store: str, file: Path, *options: str) -> Any:
        content = configuration(tmp_path / store, "127.0.0.1:1", "edges", snapshots={"interval_s": 3600})
        (tmp_path / "stream.yaml").write_text(yaml.safe_dump(content))
        arguments = ["backfill", str(file), "--config", str(tmp_path / "stream.yaml"), *options]
        return CliRunner().invoke(app, arguments)

    file = foreign(tmp_path, kind)
    assert begin("plain", plain(tmp_path)).exit_code == 0
    done = begin("foreign", file, "--columns", COLUMNS)
    assert done.exit_code == 0, done.output
    one, other = LogReader(tmp_path / "plain"), LogReader(tmp_path / "foreign")
    taus = [snapshot.tau for snapshot in one.snapshots]
    assert taus == [snapshot.tau for snapshot in other.snapshots]
    assert len(taus) > 1
    for tau in taus:
        assert one.events(tau).equals(other.events(tau))
    again = begin("foreign", file, "--columns", "src=item,dst=user,t=ts")
    assert again.exit_code == 1
    assert (
        "--columns differs from when the log's history began. Give --columns src=user,dst=item,t=ts"
        in again.stderr
    )
    assert begin("foreign", file, "--columns", COLUMNS).exit_code == 0


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("src=user", "column dst is missing; found item, t, user, ts. Name the columns of the file, such as --columns src="),
        ("src=users,dst=item,t=ts", "column users is missing; found item, t, user, ts"),
        ("src=user,dst=item,t=ts,weight=w", "column w is missing"),
        ("src=user,dst=t,t=ts", "row 1: column dst (t) has '-', expected a number"),
        ("src=user,dst=item,t=t", "row 1: column t has '-', expected a number of seconds or a time as RFC 3339"),
    ],
)  # fmt: skip
def test_wrong_columns_are_one_sentence(columns: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Failure) as failure:
        read_events(foreign(tmp_path, "tsv"), ids="int", options=FileOptions(columns=columns))
    assert words in str(failure.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_is_read_for_what_it_is_named_only(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"e.{kind}"
    if kind == "csv":
        path.write_text("dst,src,t,label\n1,2,3,4\n")
    else:
        pq.write_table(pa.table({"dst": [1], "src": [2], "t": [3], "label": [4]}), path)
    (row,) = read_events(
        path, options=FileOptions(columns="src=dst, dst=src, weight=label")
    ).events.to_pylist()
    assert (row["src"], row["dst"], row["weight"], row["label"]) == (1, 2, 4.0, None)


@pytest.mark.parametrize("kind", ["tsv", "parquet"])
def test_a_time_that_is_none_is_told_with_its_row(kind: str, tmp_path: Path) -> None:
    times = ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00", "2024-02-30T00:00:00Z"]
    path = tmp_path / f"e.{kind}"
    for wrong, words in (
        (1, "row 2: column t (ts) has '2024-01-01T00:00:00', which has no zone. End it with Z or an offset"),
        (2, "row 2: column t (ts) has '2024-02-30T00:00:00Z', which names a day that does not exist"),
    ):
        two = [times[0], times[wrong]]
        if kind == "tsv":
            path.write_text("src\tdst\tts\n" + "".join(f"1\t2\t{t}\n" for t in two))
        else:
            pq.write_table(pa.table({"src": [1, 1], "dst": [2, 2], "ts": two}), path)
        with pytest.raises(Failure) as failure:
            read_events(path, options=FileOptions(columns="t=ts"))
        assert words in str(failure.value)


def test_columns_are_not_for_stores(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["partition", str(tmp_path), "--algorithm", "hash", "--parts", "2", "--columns", "src=a"]
    )
    assert done.exit_code == 1
    assert "--columns is for files" in done.stderr


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.text(alphabet="0123456789-+:.TZtz ", max_size=30),
            st.datetimes().map(lambda t: t.isoformat() + "Z"),
            st.tuples(st.datetimes(), st.integers(0, 10**12)).map(
                lambda pair: f"{pair[0].replace(microsecond=0).isoformat()}.{pair[1]}+02:30"
            ),
        ),
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_columns_of_texts_are_read_as_single_texts_are(texts: list[str | None], start: int) -> None:
    column = pa.array(texts, pa.string()).slice(start)
    faults = Faults.none(len(column))
    read = read_times("t", column, faults).cast(pa.int64()).to_pylist()
    for row, one in enumerate(column.to_pylist()):
        try:
            expected = None if one is None else rfc3339_to_us(one)
        except ValueError as error:
            expected = None
            assert str(error) in faults.of(row)[1]
        assert read[row] == expected
