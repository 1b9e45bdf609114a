"""The root of all errors of Freshet that a caller may want to catch, and the text of any error."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_NO_LOCKS: Final = (
    "This file system has no locks, so two writers could not be kept apart. Mount it with locks (NFS with its lock service, "
    "Lustre with -o flock), or choose a folder on a local disk"
)
_NO_FOLDER_SYNC: Final = (
    "This file system cannot make names durable, as CIFS cannot. Choose a folder on a local disk or NFS"
)
_NO_RIGHT: Final = "Give the user of this process the right to it"
_NO_FOLDER: Final = "A file is where a folder should be. Choose another path, or move the file away"
_REMEDIES: Final = {
    ("mkdir", errno.EEXIST): _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    ("fsync", errno.EINVAL): _NO_FOLDER_SYNC,
    ("fsync", errno.EOPNOTSUPP): _NO_FOLDER_SYNC,
    ("flock", errno.EINVAL): _NO_LOCKS,
    ("flock", errno.ENOLCK): _NO_LOCKS,
    ("flock", errno.ENOSYS): _NO_LOCKS,
    ("flock", errno.EOPNOTSUPP): _NO_LOCKS,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: "Mount its file system for writing",
    errno.EIO: "The disk fails, or the connection to it. The kernel's log (dmesg) says more",
    errno.ESTALE: "The server of the file system has lost it. Mount the file system again",
    errno.ENOMEM: "Free some memory, or give the process more",
    errno.ENFILE: "This machine has as many files open as it may. Raise fs.file-max",
}
"""Remedies of the system's errors, by operation and number, or by number alone."""


class FreshetError(Exception):
    """Something cannot be done; the message is a sentence with the problem, its place and a remedy."""


class MissingLibraryError(FreshetError, ImportError):
    """An optional library cannot be imported; the message has the command that installs it."""


@contextmanager
def system_call(operation: str, file: object) -> Iterator[None]:
    """Add operation and file to an ``OSError`` of the block, for ``one_line``.

    The system's error has neither for calls on an open file, such as write, fsync and flock.

    Raises:
        OSError: As in the block; ``ENOMEM`` instead of a ``MemoryError``.
    """
    try:
        yield
    except OSError as error:
        _name(error, operation, file)
        raise
    except MemoryError as error:
        refusal = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        _name(refusal, operation, file)
        raise refusal from error


def _name(error: OSError, operation: str, file: object) -> None:
    vars(error).setdefault("operation", operation)
    if error.filename is None and error.strerror is not None:
        error.filename = str(file)


def one_line(error: BaseException) -> str:
    """An error's text on one line, or its type's name if it has none.

    An error of the operating system about a file becomes *file: operation: reason (number's name). Remedy*.
    """
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return _refusal(error, error.errno)
    return " ".join(str(error).split()) or type(error).__name__


_KINDS: Final = {
    "string": "text",
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a section of keys and values",
    "model": "a section of keys and values",
}
"""Kinds of values by the first word of pydantic's errors about them."""

_BOUNDS: Final = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
"""Pydantic's words for bounds, and ours."""


def must_be(error: Any) -> str:
    """One of pydantic's errors as the end of a sentence about the value, such as ``must be a whole number``."""
    kind, _, fault = error["type"].partition("_")
    if kind in _KINDS and fault in ("type", "parsing", "from_float", "attributes_type"):
        return f"must be {_KINDS[kind]}"
    message: str = error["msg"]
    if message.startswith("Input should be "):
        for theirs, ours in _BOUNDS.items():
            message = message.replace(theirs, ours)
        return message.replace("Input should be", "must be", 1)
    return message[:1].lower() + message[1:].partition(" after validation")[0]


def _refusal(error: OSError, number: int) -> str:
    operation = vars(error).get("operation") or _library_call(error)
    parts = [
        str(error.filename),
        *([operation] if operation else []),
        f"{os.strerror(number)} ({errno.errorcode.get(number, number)})",
    ]
    remedy = _REMEDIES.get((operation, number)) or _REMEDIES.get(number)
    if number == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        remedy = f"This process may have {limit} files open. Raise the limit (ulimit -n)"
    return ": ".join(parts) + (f". {remedy}" if remedy else "")


def _library_call(error: OSError) -> str:
    """The function of the standard library that raised an error, such as ``open`` or ``mkdir`` of pathlib; else empty."""
    called, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") in {"pathlib", "shutil", "tempfile"}:
            called = trace.tb_frame.f_code.co_name.strip("_")
        trace = trace.tb_next
    return called
