"""Work beside the log: one run for all requests, tried again on failure, stopped in the middle of nothing."""

import subprocess
import sys
import threading
import time

import pytest
from structlog.testing import capture_logs

from freshet_graph.schemas.config import Kafka
from freshet_graph.stream import background
from freshet_graph.stream.background import Background, ClosedTogether
from freshet_graph.stream.kafka import discovery


def test_requests_that_come_during_a_run_are_met_by_one_more() -> None:
    started, go = threading.Semaphore(0), threading.Semaphore(0)
    runs = []

    def task() -> None:
        runs.append(1)
        started.release()
        assert go.acquire(timeout=90)

    work = Background("test", task)
    work.start()
    assert started.acquire(timeout=90)  # the first run, asked for by the start itself
    for _ in range(5):
        work.ask()
    for _ in range(3):
        go.release()
    assert work.settle(90)
    work.close()
    assert len(runs) in (2, 3)  # settle asks once more, before or after the second run began


def test_a_failure_is_shown_tried_again_and_forgotten_after_success() -> None:
    failures, retries, healed = [OSError("disk full"), OSError("still full")], [], threading.Event()

    def task() -> None:
        if failures:
            raise failures.pop(0)
        healed.set()

    work = Background("test", task, retry_s=0.01, on_retry=lambda: retries.append(1))
    with capture_logs() as logs:
        work.start()
        assert healed.wait(90)
        assert work.settle(90)
    assert work.error is None
    assert len(retries) == 2
    assert [line["event"] for line in logs] == ["failed, trying again"] * 2 + ["works again"]
    work.close()


def test_settle_says_no_when_the_task_fails_or_takes_too_long() -> None:
    def fail() -> None:
        raise ValueError("no")

    failing = Background("failing", fail, retry_s=60)
    failing.start()
    assert not failing.settle(90)
    assert failing.error == "no"
    failing.close()

    blocked = threading.Event()

    def wait() -> None:
        blocked.wait(90)

    slow = Background("slow", wait)
    slow.start()
    assert not slow.settle(0.05)
    blocked.set()
    slow.close()


def test_a_closed_one_runs_nothing_more() -> None:
    runs: list[int] = []
    work = Background("test", lambda: runs.append(1))
    work.start()
    work.settle(90)
    work.close()
    done = len(runs)
    work.ask()
    assert not work.settle(0.05)
    assert len(runs) == done


def test_a_task_finds_what_holds_the_background() -> None:
    """Whatever the scheduler does, the thread doesn't run before its owner is whole."""

    class Owner:
        def __init__(self) -> None:
            self.found: list[bool] = []
            work = Background("test", lambda: self.found.append(self.work.stopping), retry_s=60)
            time.sleep(0.05)  # a thread that had begun would have looked by now
            self.work = work
            self.work.start()

    owner = Owner()
    assert owner.work.settle(90)
    assert owner.work.error is None
    owner.work.close()
    assert not any(owner.found)


def test_what_is_closed_together_waits_at_the_same_time() -> None:
    meeting = threading.Barrier(3)

    class Waiting:
        def close(self) -> None:
            meeting.wait(10)  # until all three are being closed

    with ClosedTogether() as together:
        for _ in range(3):
            together.add(Waiting())
    assert not meeting.broken


def test_a_thread_that_does_not_end_in_time_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_left_behind", [])
    over = threading.Event()
    slow, quick = Background("slow", lambda: over.wait(10) and None), Background("quick", lambda: None)
    for work in (slow, quick):
        work.start()
    assert quick.settle(10)
    assert quick.close(10)
    assert not slow.close(0.01)
    assert background.left_behind() == ["slow"]
    over.set()
    slow.close(10)


def test_work_that_is_left_behind_still_closes_what_it_has_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_left_behind", [])
    over, closed = threading.Event(), threading.Event()
    work = Background("slow", lambda: over.wait(10) and None, on_end=closed.set)
    work.start()
    assert not work.close(0.01)
    assert not closed.is_set()
    over.set()
    assert closed.wait(10)


def test_a_look_at_topics_that_no_broker_answers_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_left_behind", [])
    monkeypatch.setattr(discovery, "CLOSE_S", 0.01)
    asked, over = threading.Semaphore(0), threading.Event()
    topics = [{"name": "edges", "format": "json"}]
    watch = discovery.TopicWatch(
        Kafka.model_validate({"bootstrap": "b:1", "topics": topics, "metadata_refresh_s": 0.01})
    )
    monkeypatch.setattr(
        watch,
        "_try",
        lambda: (
            asked.release(),
            watch._identified.add("edges"),
            threading.current_thread().name == "topics" and over.wait(10),
        ),
    )
    watch.reading([("edges", 0)])
    assert asked.acquire(timeout=10)
    assert asked.acquire(timeout=10)
    watch.close()
    assert background.left_behind() == ["topics"]
    over.set()


LEFT = """
import sys, threading
from freshet_graph.stream import background, start
import freshet_graph.stream.cli

def app():
    thread = threading.Thread(target=threading.Event().wait, name="stuck")  # the interpreter would wait for it
    thread.start()
    background.ended(thread, 0.01)
    print("summary")
    raise SystemExit(3)

freshet_graph.stream.cli.app = app
start.main()
"""


def test_a_command_ends_with_its_exit_code_whatever_was_left_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (3, "summary\n")


INTERRUPTED = """
import os, signal, sys
from freshet_graph.stream import start

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "freshet_graph.stream.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
start.main()
"""


def test_ctrl_c_while_a_command_loads_is_one_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
