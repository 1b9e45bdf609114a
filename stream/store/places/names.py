"""Names inside a store: paths that cannot leave their folder, temporary names, and tokens of commits."""

import re
from typing import TypeVar

from stream.store.errors import CorruptError
from stream.store.places.promises import Place

P = TypeVar("P", bound=Place)

_STEP = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,255}")
TEMPORARY = ".tmp"
"""Suffix of files that are being written; no record ever names one."""

_TOKEN = re.compile(r"_[0-9a-f]{12}(?=[./]|$)")
"""The part of a data file's name in a bucket beside the plain one; no two writers ever use the same."""


def with_token(relative: str, token: str) -> str:
    """A data file's path with its commit's token: ``tail/3_<token>.arrow``, ``snapshots/7_<token>/events.arrow``."""
    folder, step, *rest = relative.split("/")
    name, dot, suffix = (step, "", "") if rest else step.rpartition(".")
    return "/".join([folder, f"{name}_{token}{dot}{suffix}", *rest])


def token_of(relative: str) -> str:
    """The token in a data file's path; empty if it has none."""
    found = _TOKEN.search(relative) if "_" in relative else None
    return found[0][1:] if found else ""


def plain(relative: str) -> str:
    """A data file's path, or a step of it, without the token."""
    return _TOKEN.sub("", relative, count=1) if "_" in relative else relative


def last_step(relative: str) -> str:
    """The name at the end of a path."""
    return relative.rpartition("/")[2]


def inside(root: P, relative: str) -> P:
    """The file ``relative`` of the folder ``root``.

    Args:
        root: Folder of a log or lane.
        relative: Path as in records: steps of letters, digits, ``.``, ``_``, ``-`` between slashes.

    Raises:
        CorruptError: It is absolute, has an empty, hidden or ``..`` step, or leads out by a symbolic link.
    """
    steps = relative.split("/")
    if not all(_STEP.fullmatch(step) for step in steps):
        raise CorruptError(
            f"the path {relative!r} in a record of {root} isn't a plain path inside the store. The record is damaged or not "
            "from Freshet. Restore it from a copy"
        )
    return root.entry(steps)
