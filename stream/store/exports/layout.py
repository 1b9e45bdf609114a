"""File names of exports."""

import re

from stream.store.places.place import Place, place_of

EXPORTS = "exports"
COMMITS = "commits"
FILES = "files"
PUBLISHED = "published"

_COMMIT = re.compile(r"(\d{16})\.json")
_FILE = re.compile(r"(\d+)-[0-9a-f]+-(?:embeddings|scores)(?:_[0-9a-f]{12})?\.arrow(?:\.tmp)?")


def export_folder(store: str | Place, name: str) -> Place:
    """The folder of the exports under a name."""
    return place_of(store) / EXPORTS / name


def commit_name(number: int) -> str:
    """A commit's path in that folder."""
    return f"{COMMITS}/{number:016d}.json"


def published_name(topic: str, kind: str) -> str:
    """Path of the record of a topic's progress."""
    return f"{PUBLISHED}/{topic}.{kind}.json"


def file_name(number: int, token: str, kind: str) -> str:
    """A data file's path; the token separates two writers."""
    return f"{FILES}/{number}-{token}-{kind}.arrow"


def commit_number(name: str) -> int | None:
    """The number in a commit's file name; None: it has none."""
    found = _COMMIT.fullmatch(name)
    return int(found[1]) if found else None


def file_number(name: str) -> int | None:
    """The number in the name of a data file, complete or not; None: it has none."""
    found = _FILE.fullmatch(name)
    return int(found[1]) if found else None
