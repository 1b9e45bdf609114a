"""File names of a lane; see ``docs/store-format.md``."""

from freshet_graph.stream.store.errors import LaneBusyError
from freshet_graph.stream.store.places.place import Place, place_of

FOLDER = "lanes"
HEADER = "lane.json"
COMMITS = "commits"
SNAPSHOTS = "snapshots"
STATE = "state"
INDEX = "index"
REMOVED = ".removed"
"""Suffix of a lane's folder while its files are removed; in a bucket, of an empty file beside the folder."""


def lane_folder(store: str | Place, lane: str) -> Place:
    """The folder of a lane."""
    return place_of(store) / FOLDER / lane


def lane_names(store: str | Place) -> list[str]:
    """Names of a store's lanes, sorted, without those that have no header yet or are being removed."""
    folder = place_of(store) / FOLDER
    names = set(folder.names())
    marked = {name for name in names if name.endswith(REMOVED)}
    names -= marked
    if not folder.can_move:  # a mark beside the folder says that it is being removed
        names -= {name.removesuffix(REMOVED) for name in marked}
    return sorted(name for name in names if (folder / name / HEADER).exists())


def made(folder: Place) -> float | None:
    """When a lane's header was put, which distinguishes lanes built under the same name; None: there is none."""
    try:
        return (folder / HEADER).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_going(folder: Place) -> bool:
    """Whether the lane of a folder is being removed from a bucket, which cannot rename the folder in one step."""
    mark = folder.parent / f"{folder.name}{REMOVED}"
    return not mark.can_move and mark.exists()


def require_not_removed(folder: Place) -> None:
    """Check that no lane of this name is being removed.

    Raises:
        LaneBusyError: One is.
    """
    if is_going(folder):
        raise LaneBusyError(
            f"{folder} is being removed. Run freshet-stream compact on the store, which completes the removal, or choose "
            "another name"
        )


def manifest_name(tau: int) -> str:
    """Path of snapshot τ's manifest, from the lane's folder."""
    return f"{COMMITS}/{tau}.json"


def data_name(tau: int, what: str) -> str:
    """Path of one of snapshot τ's data files."""
    return f"{SNAPSHOTS}/{tau}/{what}.arrow"


def state_name(tau: int) -> str:
    """Path of the state after snapshot τ."""
    return f"{STATE}/{tau}.arrow"


def index_base_name(first: int) -> str:
    """Path of the full state at the oldest kept snapshot, written when older ones were dropped."""
    return f"{INDEX}/base-{first}.arrow"
