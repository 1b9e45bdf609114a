"""The commands in processes that are forked from one that has loaded what they run."""

import gc
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from freshet_graph.stream.service.output import notes
from freshet_graph.stream.store import crash


def be_command(
    arguments: Sequence[str], environment: Mapping[str, str], folder: str, out: Connection, err: Connection
) -> None:
    """Be a command that was just started: ``freshet-stream``, ``freshet-trainer`` or ``python SCRIPT``."""
    os.chdir(folder)
    _write_to(out.fileno(), err.fileno())
    _be(arguments, environment)


def logged(command: list[str], log: str, environment: Mapping[str, str]) -> None:
    """Be a command whose output is appended to a file."""
    _into(log)
    _be(command, environment)


def without_settings() -> dict[str, str]:
    """The environment of this process, which is younger than the server's, without settings of the caller's shell."""
    services = ("FRESHET_STREAM", "FRESHET_TRAINER")
    return {name: value for name, value in os.environ.items() if not name.startswith(services)}


def _be(command: Sequence[str], environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # looked up again in this environment
    crash.arm(environment.get(crash.VARIABLE, ""))
    logging.root.handlers.clear()  # a warning of Beam's, when it was loaded, has made one
    name, sys.argv = command[0], list(command)
    if name == "python":
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    if name == "freshet-stream":
        from freshet_graph.stream.start import main
    else:
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

        from freshet_graph.trainer.start import main

        SubprocessHandler._popen = _rank  # type: ignore[method-assign]
    main()


def _into(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _write_to(descriptor, descriptor)


def _write_to(out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    notes.file = sys.stderr


class _Rank(subprocess.Popen[bytes]):
    """A rank forked from its launcher, and its child, as a rank that loads its libraries is."""

    def _execute_child(self, *given: Any) -> None:
        """What ``Popen`` calls once it has made its pipes: here there are none."""
        (_python, _m, _module, *arguments), environment = given[0], given[6]
        self.pid = os.fork()
        self._child_created = True
        if not self.pid:
            _be_rank(arguments, environment)


def _rank(_handler: object, arguments: Sequence[str], environment: Mapping[str, str]) -> _Rank:
    return _Rank(arguments, env=environment)


def _be_rank(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Leave everything of the launcher behind: its signals, its files, its threads, which a fork does not copy."""
    code: object = 1
    try:
        gc.freeze()  # nothing of it is ever finalised here
        os.setsid()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Path("/proc/self/comm").write_text(f"rank-{environment['RANK']}")
        _be(["freshet-trainer", *arguments], environment)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
