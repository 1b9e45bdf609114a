"""The demo's child processes: each with its log, all of them ended with the demo, whatever ends it."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

from freshet_graph.stream.service.json_lines import last_error


class ChildDiedError(Exception):
    """A child ended that should not have; the message says which, how, and where its log is."""


class Children:
    """Starts processes in groups of their own and ends them in reverse order.

    Args:
        logs: Folder for ``<name>.log`` (standard error) and ``<name>.out`` (standard output).
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for name in reversed(list(self._running)):
            self._end(self._running.pop(name), patience_s=20)

    def start(self, name: str, *command: str | Path) -> None:
        """Start a child."""
        with self.log(name).open("wb") as log, self.output(name).open("wb") as out:
            self._running[name] = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        """Where a child's standard error goes."""
        return self._logs / f"{name}.log"

    def output(self, name: str) -> Path:
        """Where a child's standard output goes."""
        return self._logs / f"{name}.out"

    def check(self) -> None:
        """Raise if a child has failed; one that ended with exit code 0 is done.

        Raises:
            ChildDiedError: A child ended with another code.
        """
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is not None and code != 0:
                self._running.pop(name)
                self._end(process, patience_s=0)
                raise ChildDiedError(
                    f"{name} {_told(code)}{self._last_line(name)}; its log is {self.log(name)}"
                )

    def done(self, name: str) -> bool:
        """Whether a child has ended with exit code 0."""
        self.check()
        process = self._running.get(name)
        return process is None or process.poll() == 0

    def stop(self, name: str, *, patience_s: float = 60) -> None:
        """Ask a child to end (SIGTERM) and wait for it.

        Raises:
            ChildDiedError: It did not end with exit code 0.
        """
        process = self._running.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._end(process, patience_s=0)
            raise ChildDiedError(
                f"{name} did not end within {patience_s:.0f} s of SIGTERM; its log is {self.log(name)}"
            ) from None
        self._end(process, patience_s=0)
        if code not in (0, -signal.SIGTERM):
            raise ChildDiedError(f"{name} {_told(code)}{self._last_line(name)}; its log is {self.log(name)}")

    def wait_for(self, path: Path, what: str, *, patience_s: float) -> None:
        """Wait until a child has written a file.

        Raises:
            ChildDiedError: A child died, or it took too long.
        """
        deadline = time.monotonic() + patience_s
        while not path.exists():
            self.check()
            if time.monotonic() > deadline:
                raise ChildDiedError(
                    f"{what} did not come up within {patience_s:.0f} s; logs are in {self._logs}"
                )
            time.sleep(0.05)

    def _last_line(self, name: str) -> str:
        text = self.log(name).read_text(encoding="utf-8", errors="replace")
        lines = text.strip().splitlines()
        return f" ({(last_error(text) or lines[-1])[:300]})" if lines else ""

    @staticmethod
    def _end(process: "subprocess.Popen[bytes]", *, patience_s: float) -> None:
        """End the whole group: a launcher's ranks must not outlive it."""
        for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
            if number == signal.SIGTERM and wait_s <= 0:
                continue
            try:
                os.killpg(process.pid, number)
                process.wait(wait_s)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


def _told(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
