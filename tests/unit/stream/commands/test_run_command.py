"""What ``freshet-stream run`` says beside its figures."""

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from log_lines import log_lines
from streaming import configuration
from typer.testing import CliRunner

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.cli import app
from freshet_graph.stream.commands import run as run_module
from freshet_graph.stream.job import loop
from freshet_graph.stream.job.loop import StreamJob
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.service import progress
from freshet_graph.stream.service.json_lines import JsonLines
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.store.log.writer import LogWriter


@pytest.mark.parametrize(("late", "noted"), [(0, False), (50, False), (51, True)])
def test_a_run_whose_events_were_mostly_late_says_what_to_do(
    tmp_path: Path, clean_environment: pytest.MonkeyPatch, late: int, noted: bool
) -> None:
    content = {
        "graph": "demo",
        "store": "./store",
        "kafka": {"bootstrap": "127.0.0.1:9", "topics": [{"name": "edges"}]},
        "snapshots": {"interval_s": 60},
    }
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    figures = {"snapshots": 1, "events": 100, "refused": 0, "late": late, "held": []}
    clean_environment.setattr(run_module, "run_job", lambda config, **options: figures)
    shown = CliRunner().invoke(app, ["run", "--config", str(tmp_path / "stream.yaml"), "--json"])
    assert shown.exit_code == 0
    assert ("topic and a store of their own" in shown.stderr) is noted
    assert shown.stdout.count("\n") == 1


def test_in_a_log_the_numbers_of_the_status_are_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = StreamMetrics(StreamConfig(**configuration(tmp_path / "store", "127.0.0.1:1", "edges")))
    log = tmp_path / "log"
    monkeypatch.setattr(progress, "PLAIN_S", 0.01)

    def run() -> list[dict[str, Any]]:
        deadline_s = time.monotonic() + 30
        while not log.read_text().endswith("\n"):
            assert time.monotonic() < deadline_s
        return log_lines(log.read_text())

    job: Any = SimpleNamespace(run=run, lag=lambda: 7, lane_lags=lambda: {"sep": 2}, interrupt=lambda: None)
    with log.open("w") as file, ExitStack() as signals, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", JsonLines(file.fileno()))
        lines: Any = run_module._watched("test", job, metrics.totals, signals)
    assert {key: value for key, value in lines[0].items() if key not in ("level", "timestamp")} == {
        "event": "status", "graph": "test", "events": 0, "events_per_s": 0.0, "snapshots": 0, "refused": 0, "late": 0,
        "unread": 7, "behind": {"sep": 2},
    }  # fmt: skip


def test_the_status_has_no_unread_messages_before_the_topics_were_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StreamConfig(**configuration(tmp_path / "store", "127.0.0.1:1", "edges"))
    metrics = StreamMetrics(config)
    job = StreamJob(config, metrics)
    noted: list[str] = []
    monkeypatch.setattr(progress, "PLAIN_S", 0.01)
    monkeypatch.setattr(progress, "note", lambda sentence, *_: noted.append(sentence))

    def shown(number: int) -> str:
        deadline_s = time.monotonic() + 30
        while len(noted) < number:
            assert time.monotonic() < deadline_s
        return noted[number - 1]

    def run() -> str:
        first = shown(1)
        job._reader = SimpleNamespace(lag=lambda: {("edges", 0): 1_200})  # type: ignore[assignment]
        return f"{first}; {shown(2)}"

    monkeypatch.setattr(job, "run", run)
    with ExitStack() as signals:
        told = run_module._watched("test", job, metrics.totals, signals)
    line = "test: 0 events (0/s) in 0 snapshots since the start, refused 0, late 0"
    assert str(told) == f"{line}; {line}, unread 1,200"


def test_kernels_are_compiled_before_a_standby_waits_and_else_with_the_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilation takes up to a minute: no error of a start comes after it, and no takeover waits for it."""
    done: list[str] = []
    monkeypatch.setattr(loop, "require_fit", lambda _: done.append("fit"))
    monkeypatch.setattr(loop.Decoding, "warm_up", lambda _: done.append("compiled"))
    (tmp_path / "file").touch()
    inside = StreamConfig(**configuration(tmp_path / "file" / "store", "127.0.0.1:1", "edges"))
    with pytest.raises(NotADirectoryError):
        StreamJob(inside, StreamMetrics(inside)).run()
    assert done == []

    config = StreamConfig(**configuration(tmp_path / "store", "127.0.0.1:1", "edges"))
    with LogWriter.open(config.store, log_header(config)):
        job = StreamJob(config, StreamMetrics(config), standby=True)
        monkeypatch.setattr(loop.Decoding, "warm_up", lambda _: (done.append("compiled"), job.stop()))
        assert job.run().events == 0
    assert done == ["fit", "compiled"]


@pytest.mark.parametrize(
    ("moment", "exit_code", "said"), [("__enter__", 0, ""), ("__exit__", 1, "no broker answers")]
)
def test_a_signal_beside_the_job_itself_is_no_crash(
    tmp_path: Path, clean_environment: pytest.MonkeyPatch, moment: str, exit_code: int, said: str
) -> None:
    """As the display begins, and as it ends after the job failed: nothing there would catch what ends a wait."""
    unsignalled = getattr(progress.Display, moment)

    def signalled(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return unsignalled(*arguments)

    clean_environment.setattr(progress.Display, moment, signalled)
    content = configuration(tmp_path / "store", "127.0.0.1:9", "edges")
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    shown = CliRunner().invoke(app, ["run", "--config", str(tmp_path / "stream.yaml")])
    assert (shown.exit_code, said in shown.stderr) == (exit_code, True), shown.stderr
