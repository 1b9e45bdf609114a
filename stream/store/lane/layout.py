"""Where a lane keeps what: the file names of ``docs/store-format.md``."""

from stream.store.errors import LaneBusyError
from stream.store.places.place import Place, place_of

FOLDER = "lanes"
HEADER = "lane.json"
COMMITS = "commits"
SNAPSHOTS = "snapshots"
STATE = "state"
INDEX = "index"
REMOVED = ".removed"
"""A lane's folder gets this suffix before it is removed file by file; in a bucket, an empty file beside it has that name."""


def lane_folder(store: str | Place, lane: str) -> Place:
    """Folder of a lane."""
    return place_of(store) / FOLDER / lane


def lane_names(store: str | Place) -> list[str]:
    """Lanes that a store has, by name; one whose header isn't written yet, or that is being removed, doesn't count."""
    folder = place_of(store) / FOLDER
    names = {path.parent.name for path in folder.glob(f"*/{HEADER}")}
    if not folder.can_move:  # a mark beside it says that it goes
        names -= {path.name.removesuffix(REMOVED) for path in folder.glob(f"*{REMOVED}")}
    return sorted(name for name in names if not name.endswith(REMOVED))


def made(folder: Place) -> float | None:
    """When the header of a lane was put, which tells the lane from one that was made anew; None: there is none."""
    try:
        return (folder / HEADER).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_going(folder: Place) -> bool:
    """Whether the lane of a folder is being removed, in a bucket, where the folder itself can't be moved away at once."""
    mark = folder.with_name(folder.name + REMOVED)
    return not mark.can_move and mark.exists()


def require_not_removed(folder: Place) -> None:
    """Check that no lane of this name is being removed.

    Raises:
        LaneBusyError: One is.
    """
    if is_going(folder):
        raise LaneBusyError(
            f"{folder} is being removed: run freshet-stream compact on the store, which ends that, or choose another name"
        )


def manifest_name(tau: int) -> str:
    """Path of snapshot τ's manifest under the lane's folder."""
    return f"{COMMITS}/{tau}.json"


def data_name(tau: int, what: str) -> str:
    """Path of one of snapshot τ's data files."""
    return f"{SNAPSHOTS}/{tau}/{what}.arrow"


def state_name(tau: int) -> str:
    """Path of the state after snapshot τ."""
    return f"{STATE}/{tau}.arrow"


def index_name(number: int) -> str:
    """Path of an index."""
    return f"{INDEX}/{number}.json"


def index_rows_name(number: int) -> str:
    """Path of the rows of an index, a manifest each."""
    return f"{INDEX}/{number}.arrow"


def index_base_name(first: int) -> str:
    """Path of the full state at the oldest kept snapshot, written when older ones were dropped."""
    return f"{INDEX}/base-{first}.arrow"
