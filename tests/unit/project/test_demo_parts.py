"""The demo's parts: children that never outlive it, one sentence when one dies, figures read from the endpoints."""

import io
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console

from freshet_graph.schemas.config import Metrics, StreamConfig
from freshet_graph.schemas.events import Op
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.service.endpoint import Endpoint
from freshet_graph.trainer.metrics import TrainerMetrics

DEMO = Path(__file__).parents[3] / "deploy" / "demo"


@pytest.fixture(autouse=True)
def _demo_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def wait_until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_child_that_dies_is_told_in_one_sentence_with_its_last_words_and_log(logs: Path) -> None:
    from children import ChildDiedError, Children

    with Children(logs) as children:
        children.start("stream", sys.executable, "-c", "import sys; sys.exit('error: the disk is full')")

        def died() -> bool:
            try:
                children.check()
            except ChildDiedError as error:
                text = str(error)
                assert "stream ended with exit code 1" in text
                assert "the disk is full" in text
                assert str(logs / "stream.log") in text
                return True
            return False

        wait_until(died)


def test_children_and_their_children_end_with_the_demo(logs: Path) -> None:
    from children import Children

    program = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with Children(logs) as children:
        children.start("launcher", sys.executable, "-c", program)
        wait_until(lambda: children.output("launcher").read_text().strip())
        grandchild = int(children.output("launcher").read_text())
        assert psutil.pid_exists(grandchild)
    wait_until(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie")


def test_a_child_that_ignores_sigterm_is_killed_and_told(logs: Path) -> None:
    from children import ChildDiedError, Children

    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with Children(logs) as children:
        children.start("deaf", sys.executable, "-c", program)
        wait_until(lambda: children.output("deaf").read_text())
        with pytest.raises(ChildDiedError, match=r"deaf did not end within 0 s"):
            children.stop("deaf", patience_s=0.2)


def test_a_child_that_ended_well_is_done_and_no_failure(logs: Path) -> None:
    from children import Children

    with Children(logs) as children:
        children.start("short", sys.executable, "-c", "pass")
        wait_until(lambda: children.done("short"))
        children.check()


def test_the_demo_replaces_its_own_output_and_nothing_else(tmp_path: Path) -> None:
    import orchestrate
    from children import ChildDiedError

    out = orchestrate.fresh_folder(tmp_path / "demo")
    (out / "old.txt").write_text("from the last run")
    assert not (orchestrate.fresh_folder(out) / "old.txt").exists()
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.tex").write_text("years of work")
    with pytest.raises(ChildDiedError, match=r"thesis.*--out"):
        orchestrate.fresh_folder(foreign)
    assert (foreign / "chapter.tex").exists()


def serve(registry: CollectorRegistry) -> Endpoint:
    return Endpoint(Metrics(port=0), registry, lambda: None)


def test_a_reading_finds_every_figure_under_the_names_that_the_services_export() -> None:
    import figures

    stream = StreamMetrics(
        StreamConfig.model_validate(
            {
                "graph": "demo",
                "store": "/",
                "kafka": {"bootstrap": "127.0.0.1:1", "topics": [{"name": "edges"}]},
                "snapshots": {"interval_s": 60},
            }
        )
    )
    stream.accepted("edges", Op.INSERT, 40)
    stream.accepted("edges", Op.NODE, 2)
    stream.lag({("edges", 0): 5, ("edges", 1): 6})
    stream.lane_lag("sep", 1)
    trainer = TrainerMetrics(TrainerConfig(), 0)
    trainer.scored(
        {("ap", "all", "model"): 0.9, ("ap", "all", "recency"): 0.6, ("ap", "inductive", "model"): 0.1}
    )
    trainer.used("trained", 30)
    trainer.lag(2)
    now_us = round(time.time() * 1e6)
    trainer.learned(0.5, 0, newest_event_us=now_us - 10_000_000, oldest_event_us=now_us - 15_000_000)
    ends = [serve(stream.registry), serve(trainer.registry)]
    try:
        reading = figures.read(ends[0].url, ends[1].url)
        assert figures.ready(ends[0].url)
    finally:
        for end in ends:
            end.close()
    assert (reading.events, reading.lag, reading.trained, reading.trainer_lag) == (42, 11, 30, 2)
    assert reading.scores == {"model": 0.9, "recency": 0.6}
    assert reading.lanes["sep"].lag == 1
    assert reading.weights_age_s == pytest.approx(10, abs=5)


def test_a_service_that_does_not_answer_leaves_its_figures_out() -> None:
    import figures

    reading = figures.read("http://127.0.0.1:9", "http://127.0.0.1:9")
    assert (reading.events, reading.scores, reading.weights_age_s) == (0, {}, None)
    assert not figures.ready("http://127.0.0.1:9")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_the_figures_on_a_terminal_and_as_lines(terminal: bool) -> None:
    import figures
    import progress

    console = Console(force_terminal=terminal, width=120, record=True, file=io.StringIO())
    reading = figures.Reading(
        events=1234, snapshots=7, lanes={"sep": figures.Lane(cut=0.125)}, scores={"model": 0.875}
    )
    with progress.Progress(console, total=5000) as shown:
        shown.show("streaming", 2000, reading)
    text = console.export_text()
    for figure in ("1,234", "2,000", "0.125", "0.875", "streaming"):
        assert figure in text
