"""The commands as processes forked from a server that has loaded what they run: a start costs milliseconds."""

import functools
import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from command_job import be_command

PRELOAD = [
    *("stream.pipeline", "stream.commands.run", "stream.job.loop", "stream.metrics", "trainer_job"),
    "torch._dynamo",  # the first optimiser of a process loads it
    *("command_job", "crash_jobs_loaded", "compaction_crash_job"),
]
_PYTHONPATH = os.environ.get("PYTHONPATH")


@functools.cache
def server() -> ForkServerContext:
    """Makes processes that have loaded ``PRELOAD``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        multiprocessing.forkserver.ensure_running()
    return context


class WarmPopen(subprocess.Popen[Any]):
    """A ``Popen`` of ``freshet-stream``, ``freshet-trainer`` or ``python SCRIPT`` that forks instead of loading anything.

    Not for what a process does before it has loaded its libraries, for its own words in the list of processes, nor for
    another Python path.
    """

    def _execute_child(self, *given: Any) -> None:
        """What ``Popen`` calls once it has made its pipes; the child's ends are closed here, as there."""
        arguments, _, _, _, _, cwd, environment, *_ = given
        environment = dict(os.environ if environment is None else environment)
        assert environment.get("PYTHONPATH") == _PYTHONPATH, "another Python path needs a cold start"
        pipes = given[10:16]
        out, err = (Connection(os.dup(1 if end == -1 else end), readable=False) for end in pipes[3::2])
        self._process = server().Process(
            target=be_command,
            args=(
                list(map(str, arguments)),
                environment,
                str(cwd or Path.cwd()),
                out,
                err,
            ),
        )
        self._process.start()
        self.pid = self._process.pid
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, **_: Any) -> int | None:
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        self._process.join(timeout)
        if self._internal_poll() is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


def run(
    arguments: Sequence[str | Path], *, environment: Mapping[str, str], timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """One command to its end, as ``subprocess.run`` does with captured text."""
    with WarmPopen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)
