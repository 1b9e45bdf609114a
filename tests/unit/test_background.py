"""Work beside the log: one run for all requests, tried again on failure, stopped in the middle of nothing."""

import threading
import time

from stream.background import Background


def test_requests_that_come_during_a_run_are_met_by_one_more() -> None:
    started, go = threading.Semaphore(0), threading.Semaphore(0)
    runs = []

    def task() -> None:
        runs.append(1)
        started.release()
        assert go.acquire(timeout=10)

    work = Background("test", task)
    work.start()
    assert started.acquire(timeout=10)  # the first run, asked for by the start itself
    for _ in range(5):
        work.ask()
    for _ in range(3):
        go.release()
    assert work.settle(10)
    work.close()
    assert len(runs) in (2, 3)  # settle asks once more, before or after the second run began


def test_a_failure_is_shown_tried_again_and_forgotten_after_success() -> None:
    failures, retries, healed = [OSError("disk full"), OSError("still full")], [], threading.Event()

    def task() -> None:
        if failures:
            raise failures.pop(0)
        healed.set()

    work = Background("test", task, retry_s=0.01, on_retry=lambda: retries.append(1))
    work.start()
    assert healed.wait(10)
    assert work.settle(10)
    assert work.error is None
    assert len(retries) == 2
    work.close()


def test_settle_says_no_when_the_task_fails_or_takes_too_long() -> None:
    def fail() -> None:
        raise ValueError("no")

    failing = Background("failing", fail, retry_s=60)
    failing.start()
    assert not failing.settle(10)
    assert failing.error == "no"
    failing.close()

    blocked = threading.Event()

    def wait() -> None:
        blocked.wait(10)

    slow = Background("slow", wait)
    slow.start()
    assert not slow.settle(0.05)
    blocked.set()
    slow.close()


def test_a_closed_one_runs_nothing_more() -> None:
    runs: list[int] = []
    work = Background("test", lambda: runs.append(1))
    work.start()
    work.settle(10)
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
    assert owner.work.settle(10)
    assert owner.work.error is None
    owner.work.close()
    assert not any(owner.found)
