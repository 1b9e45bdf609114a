"""Where the log keeps what: the file names of ``docs/store-format.md``."""

from pathlib import Path

FOLDER = "log"
HEADER = "log.json"
HISTORY = "history.json"
COMMITS = "commits"
TAIL = "tail"
REJECTS = "rejects"
SNAPSHOTS = "snapshots"


def log_folder(store: str | Path) -> Path:
    """Folder of a store's log."""
    return Path(store) / FOLDER


def commit_name(n: int) -> str:
    """Path of commit n's record under the log's folder."""
    return f"{COMMITS}/{n:016d}.json"


def tail_name(n: int) -> str:
    """Path of the open events that commit n wrote."""
    return f"{TAIL}/{n}.arrow"


def rejects_name(n: int) -> str:
    """Path of the messages that commit n refused."""
    return f"{REJECTS}/{n}.arrow"


def events_name(tau: int) -> str:
    """Path of a sealed snapshot's events."""
    return f"{SNAPSHOTS}/{tau}/events.arrow"


def nodes_name(tau: int) -> str:
    """Path of the ids first seen in a sealed snapshot."""
    return f"{SNAPSHOTS}/{tau}/nodes.arrow"
