"""Where a lane keeps what: the file names of ``docs/store-format.md``."""

from pathlib import Path

FOLDER = "lanes"
HEADER = "lane.json"
COMMITS = "commits"
SNAPSHOTS = "snapshots"
STATE = "state"
INDEX = "index"
REMOVED = ".removed"
"""A lane's folder gets this suffix before it is removed file by file."""


def lane_folder(store: str | Path, lane: str) -> Path:
    """Folder of a lane."""
    return Path(store) / FOLDER / lane


def lane_names(store: str | Path) -> list[str]:
    """Lanes that a store has, by name; one whose header isn't written yet, or that is being removed, doesn't count."""
    names = (path.parent.name for path in (Path(store) / FOLDER).glob(f"*/{HEADER}"))
    return sorted(name for name in names if not name.endswith(REMOVED))


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
