"""Where a lane keeps what: the file names of ``docs/store-format.md``."""

from pathlib import Path

FOLDER = "lanes"
HEADER = "lane.json"
COMMITS = "commits"
SNAPSHOTS = "snapshots"
STATE = "state"


def lane_folder(store: str | Path, lane: str) -> Path:
    """Folder of a lane."""
    return Path(store) / FOLDER / lane


def lane_names(store: str | Path) -> list[str]:
    """Lanes that a store has, by name; one whose header isn't written yet doesn't count."""
    return sorted(path.parent.name for path in (Path(store) / FOLDER).glob(f"*/{HEADER}"))


def manifest_name(tau: int) -> str:
    """Path of snapshot τ's manifest under the lane's folder."""
    return f"{COMMITS}/{tau}.json"


def data_name(tau: int, what: str) -> str:
    """Path of one of snapshot τ's data files."""
    return f"{SNAPSHOTS}/{tau}/{what}.arrow"


def state_name(tau: int) -> str:
    """Path of the state after snapshot τ."""
    return f"{STATE}/{tau}.arrow"
