"""A stream job on a thread or in a process, asked how it is and waited for."""

import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from log_lines import served_at

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.job.loop import Ran, StreamJob
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.service.endpoint import Endpoint
from freshet_graph.stream.store.log.reader import LogReader


def readiness(endpoint: Endpoint) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{endpoint.url}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


def reached(condition, timeout_s: float = 90) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Running:
    """A job on a thread with its endpoint."""

    def __init__(self, config: StreamConfig, *, until_idle_s: float | None = None) -> None:
        metrics = StreamMetrics(config)
        self.totals = metrics.totals
        self.job = StreamJob(config, metrics, until_idle_s=until_idle_s)
        self.endpoint = Endpoint(config.metrics, metrics.registry, self.job.not_ready)
        self.ran: list[Ran] = []
        self.thread = threading.Thread(target=lambda: self.ran.append(self.job.run()))
        self.thread.start()

    def ready(self) -> tuple[int, str]:
        return readiness(self.endpoint)

    def close(self) -> None:
        self.job.stop()
        self.thread.join(timeout=30)
        self.endpoint.close()


def events_of(store: Path) -> int:
    if not (store / "log" / "log.json").exists():
        return 0
    log = LogReader(store)
    return sum(snapshot.num_events for snapshot in log.snapshots) + (log.last.tail_events if log.last else 0)


def endpoint(log: Path) -> str:
    """Where a started job serves its health."""
    reached(lambda: log.exists() and served_at(log.read_text()))
    return str(served_at(log.read_text()))


def get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def sealed(store: Path) -> int:
    return len(LogReader(store).snapshots) if (store / "log" / "log.json").exists() else 0


SECONDS = 30  # on a machine however busy; what hangs would wait for a minute and more


def ended_by(job, log: Path) -> None:  # type: ignore[no-untyped-def]
    """Send SIGTERM; the job ends with 0 within seconds."""
    job.send_signal(signal.SIGTERM)
    asked_s = time.monotonic()
    try:
        assert job.wait(timeout=60) == 0, log.read_text()
    finally:
        job.kill()
        job.wait()
    assert time.monotonic() - asked_s < SECONDS, log.read_text()


def read_of(store: Path) -> dict[int, int]:
    """Next offset by partition."""
    last = LogReader(store).last if (store / "log" / "log.json").exists() else None
    return {position.partition: position.next for position in last.positions} if last else {}
