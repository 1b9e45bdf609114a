"""The commands as processes forked from a server that has loaded what they run: a start costs milliseconds."""

import faulthandler
import functools
import gc
import logging
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from command_job import be_command

PRELOAD = [
    *(
        "freshet_graph.stream.pipeline",
        "freshet_graph.stream.commands.run",
        "freshet_graph.stream.job.loop",
        "freshet_graph.stream.metrics",
        "trainer_job",
    ),
    "torch._dynamo",  # the first optimiser of a process loads it
    *("command_job", "crash_jobs_loaded", "compaction_crash_job"),
]
ALL_TESTS = 1_000
"""More than so many of them are not a choice."""
_PYTHONPATH = os.environ.get("PYTHONPATH")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Fork the server from this process: after everything is loaded for the tests, before any of them starts a thread.

    All tests will need it, and much of what it loads. A few may not: then nothing is loaded before it is needed.
    """
    if len(session.items) > ALL_TESTS:
        _load()
    server()
    return (yield)


@functools.cache
def server() -> ForkServerContext:
    """Makes processes that have loaded ``PRELOAD``."""
    context = multiprocessing.get_context("forkserver")
    resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(util, "spawnv_passfds", _fork)
        forkserver.ensure_running()
    return context


def _load() -> None:
    logging.disable()  # a warning of Beam's
    for module in PRELOAD:
        import_module(module)
    logging.disable(logging.NOTSET)
    gc.freeze()  # the garbage collector of a forked process would otherwise copy all of it


def _fork(_python: bytes, arguments: Sequence[str], pass_fds: Sequence[int]) -> int:
    """What starts the server, in place of a new Python: without what pytest has made of this one."""
    if pid := os.fork():
        return pid
    try:
        faulthandler.disable()
        sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
        signal.signal(signal.SIGINT, signal.default_int_handler)
        forkserver._forkserver.__init__()  # type: ignore[attr-defined,misc]  # its lock is held
        for low, high in pairwise(sorted([0, 1, 2, *pass_fds, os.sysconf("SC_OPEN_MAX")])):
            os.closerange(low + 1, high)
        listener, tests = pass_fds
        if tests not in select.select([listener, tests], [], [])[0]:  # else they ended, and needed no process
            _load()
            exec(arguments[-1])
    finally:
        os._exit(0)


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
