"""What ``freshet-stream run`` says beside its figures."""

import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from streaming import configuration
from typer.testing import CliRunner

from schemas.config import StreamConfig
from stream.cli import app
from stream.commands import progress
from stream.commands import run as run_module
from stream.job.loop import StreamJob
from stream.metrics import StreamMetrics


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


def test_the_status_has_no_unread_messages_before_the_topics_were_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = StreamConfig(**configuration(tmp_path / "store", "127.0.0.1:1", "edges"))
    metrics = StreamMetrics(config)
    job, told = StreamJob(config, metrics), ""
    monkeypatch.setattr(progress, "PLAIN_S", 0.01)

    def shown() -> str:
        deadline_s, text = time.monotonic() + 30, ""
        while "late 0" not in text:
            assert time.monotonic() < deadline_s
            text += capsys.readouterr().err
        return text

    def run() -> str:
        nonlocal told
        told = shown()
        job._reader = SimpleNamespace(lag=lambda: {("edges", 0): 1_200})  # type: ignore[assignment]
        return shown()

    monkeypatch.setattr(job, "run", run)
    with ExitStack() as signals:
        then = run_module._watched("test", job, metrics.totals, signals)
    assert "unread" not in told
    assert "late 0, unread 1,200" in str(then)
