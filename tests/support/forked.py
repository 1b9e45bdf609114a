"""Processes forked from a server that has imported what they run: tests that kill one after another need many."""

from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest
from command_job import logged, without_settings
from streaming import T0, configuration, edge, fresh_topic, send, written
from warm_popen import server

from freshet_graph.stream.store import crash


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Makes processes that have loaded what tests run in them."""
    return server()


class Commands:
    """Starts ``freshet-stream`` again and again."""

    def __init__(self, processes: ForkServerContext) -> None:
        self._processes = processes
        self._started: list[ForkServerProcess] = []

    def start(self, *arguments: str | Path, log: Path, crash_at: str = "") -> ForkServerProcess:
        """One process; ``crash_at`` as in FRESHET_CRASH_AT."""
        environment = without_settings() | {crash.VARIABLE: crash_at}
        process = self._processes.Process(
            target=logged, args=(["freshet-stream", *map(str, arguments)], str(log), environment)
        )
        process.start()
        self._started.append(process)
        return process

    def run(self, *arguments: str | Path, log: Path, crash_at: str = "", timeout_s: float = 180) -> int:
        """Run one to its end; returns its exit code, negative for the signal that killed it."""
        process = self.start(*arguments, log=log, crash_at=crash_at)
        process.join(timeout_s)
        assert process.exitcode is not None, f"still running after {timeout_s} s: {log.read_text()[-2000:]}"
        return process.exitcode

    def close(self) -> None:
        """Leave nothing running."""
        for process in self._started:
            if process.is_alive():
                process.kill()
            process.join(10)


@pytest.fixture(scope="session")
def warm(processes: ForkServerContext, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One whole run, so that no kill meets the compiler: what it was compiling would be compiled anew each time."""
    folder = tmp_path_factory.mktemp("warm")
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, 2, T0), edge(2, 3, T0 + 86_400)])
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2}]
    path = written(folder, configuration(folder / "store", kafka, topic, lanes=lanes))
    log = folder / "job.log"
    ended = Commands(processes).run("run", "--config", path, "--until-idle", "0.3", log=log, timeout_s=300)
    assert ended == 0, log.read_text()


@pytest.fixture
def commands(processes: ForkServerContext, warm: None) -> Iterator[Commands]:
    """Starts ``freshet-stream``; what still runs at the end is killed."""
    made = Commands(processes)
    yield made
    made.close()
