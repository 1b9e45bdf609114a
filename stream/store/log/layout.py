"""File names of the log, and rows of a record batch; see ``docs/store-format.md``."""

from freshet_graph.schemas.events import MAX_ID_BYTES
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.store.places.interface import with_token
from freshet_graph.stream.store.places.place import Place, place_of

FOLDER = "log"
HEADER = "log.json"
HISTORY = "history.json"
COMMITS = "commits"
TAIL = "tail"
REJECTS = "rejects"
LABELS = "labels"
SNAPSHOTS = "snapshots"
INDEX = "index"


def log_folder(store: str | Place) -> Place:
    """The folder of a store's log."""
    return place_of(store) / FOLDER


def commit_name(n: int) -> str:
    """Path of commit n's record, from the log's folder."""
    return f"{COMMITS}/{n:016d}.json"


def tail_name(n: int) -> str:
    """Path of the open events that commit n wrote."""
    return f"{TAIL}/{n}.arrow"


def rejects_name(n: int) -> str:
    """Path of the messages that commit n refused."""
    return f"{REJECTS}/{n}.arrow"


def labels_name(n: int) -> str:
    """Path of the labels that came with commit n."""
    return f"{LABELS}/{n}.arrow"


def gathered_labels_name(number: int, first: int, last: int) -> str:
    """Path of the labels of commits ``first`` to ``last`` together, as index ``number`` wrote them."""
    return f"{INDEX}/labels-{number}-{first}-{last}.arrow"


def events_name(tau: int, token: str = "") -> str:
    """Path of a sealed snapshot's events; ``token``: its token in a bucket."""
    return _named(f"{SNAPSHOTS}/{tau}/events.arrow", token)


def nodes_name(tau: int, token: str = "") -> str:
    """Path of the ids first seen in a sealed snapshot; ``token``: its token in a bucket."""
    return _named(f"{SNAPSHOTS}/{tau}/nodes.arrow", token)


def arrivals_name(tau: int, token: str = "") -> str:
    """Path of the commits that a sealed snapshot's events came with; ``token``: its token in a bucket."""
    return _named(f"{SNAPSHOTS}/{tau}/arrivals.arrow", token)


def _named(relative: str, token: str) -> str:
    return with_token(relative, token) if token else relative


def index_name(number: int) -> str:
    """Path of an index."""
    return f"{INDEX}/{number}.json"


def index_rows_name(number: int) -> str:
    """Path of the rows of an index, one per snapshot."""
    return f"{INDEX}/{number}.arrow"


def ids_name(start: int, end: int) -> str:
    """Path of the external ids of dense ids ``start`` to ``end`` − 1."""
    return f"{INDEX}/ids-{start}-{end}.arrow"


def log_base_name(first: int) -> str:
    """Path of the live graph before snapshot number ``first``."""
    return f"{INDEX}/base-{first}.arrow"


MAX_BATCH_ROWS = 1 << 22
_MAX_INDEX = (1 << 31) - 1


def batch_rows(header: LogHeader) -> int:
    """Rows of a record batch, such that no Arrow array overflows its 32-bit offsets: all but huge snapshots have one."""
    width = max(header.node_features, header.edge_features, MAX_ID_BYTES)
    return min(MAX_BATCH_ROWS, _MAX_INDEX // width)
