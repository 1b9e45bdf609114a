"""What ``freshet-stream run`` says beside its figures."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from stream.cli import app
from stream.commands import run as run_module


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
    figures = {"snapshots": 1, "events": 100, "refused": 0, "late": late}
    clean_environment.setattr(run_module, "run_job", lambda config, **options: figures)
    shown = CliRunner().invoke(app, ["run", "--config", str(tmp_path / "stream.yaml"), "--json"])
    assert shown.exit_code == 0
    assert ("topic and a store of their own" in shown.stderr) is noted
    assert shown.stdout.count("\n") == 1
