"""The files of an index folder, and those that a newer index has replaced."""

import re

from freshet_graph.stream.store.log.index import COPIES
from freshet_graph.stream.store.places.interface import TEMPORARY, plain
from freshet_graph.stream.store.places.place import Place

_NUMBERED = re.compile(r"(\d+)\.(json|arrow)")
_NAMED = re.compile(r"(ids|base|labels)-[\d-]+\.arrow")  # both without the token of names in a bucket


def next_number(folder: Place) -> int:
    """Number of the first copy of the next index: even, so that an odd one shows that both copies exist."""
    numbers = [int(match[1]) for name in folder.names() if (match := _NUMBERED.fullmatch(plain(name)))]
    return (max(numbers, default=-1) + COPIES) // COPIES * COPIES


def is_complete(number: int) -> bool:
    """Whether an index is the second of its copies."""
    return number % COPIES == COPIES - 1


def replaced(folder: Place, number: int, named: set[str]) -> list[Place]:
    """Files of a log's or lane's index folder that an index replaces.

    Args:
        folder: The index folder.
        number: The index; it and later ones stay with their rows.
        named: Paths, relative to the folder's parent, of the other files that it names.

    Returns:
        Earlier indexes, records first so that none ever names a missing file; then their files, and remains of an
        interrupted compaction. Files with foreign names are left alone.
    """
    records: list[Place] = []
    files: list[Place] = []
    for path in folder.iterdir():
        match = _NUMBERED.fullmatch(plain(path.name))
        if match is not None:
            if int(match[1]) < number:
                (records if match[2] == "json" else files).append(path)
        elif (
            _NAMED.fullmatch(plain(path.name)) and f"{folder.name}/{path.name}" not in named
        ) or path.name.endswith(TEMPORARY):
            files.append(path)
    return [*records, *files]
