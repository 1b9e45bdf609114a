"""Records of the store: the JSON files of ``docs/store-format.md``.

Every record carries the checksum of its own canonical JSON; ``freshet_graph.stream.store`` reads and writes them.
"""

from enum import IntEnum
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
)

from freshet_graph.schemas.events import IdKind
from freshet_graph.schemas.quality import FIGURES, Quality

FORMAT_VERSION = 1

WHOLE_PAIRS: Final = 2
"""Format version of a lane's manifest whose ``edges.arrow`` lists all pairs instead of the changes."""

FOLLOWED: Final = 2
"""Format version of a log's header that replaced another one after commits, and before the first event."""

WITH_ARRIVALS: Final = 2
"""Format version of a commit that says with which commit each event came, open or sealed."""

WITH_LABELS: Final = 3
"""Format version of a commit in or after which labels are in the log."""

LABELS_NAMED: Final = 2
"""Format version of a log's index, and of a history, that names files of labels."""

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Width = Annotated[int, Field(ge=0, lt=2**31)]
"""Numbers as other languages hold them: a record with a larger one is damaged."""


class Frozen(BaseModel):
    """Base of records and their parts: immutable, exact keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Record(Frozen):
    """Base of all JSON records: self-checksummed."""

    VERSIONS: ClassVar[tuple[int, ...]] = (FORMAT_VERSION,)
    """Format versions that this release reads."""

    format_version: int = FORMAT_VERSION
    checksum: str = Field("", description="xxh64 of the record's canonical JSON with this key empty, hex.")


class FileRef(Frozen):
    """A data file, as its record describes it."""

    path: str = Field(description="Relative to the log's or the lane's folder.")
    bytes: Count
    checksum: str = Field(description="xxh64 of the whole file, hex.")


class LogHeader(Record):
    """``log/log.json``: what never changes in a log once it has an event, graph and interval once it has a commit."""

    VERSIONS: ClassVar[tuple[int, ...]] = (FORMAT_VERSION, FOLLOWED)

    graph: str
    interval_us: int = Field(
        gt=0, description="Length of a snapshot in microseconds; τ = floor(t / interval)."
    )
    ids: IdKind
    node_features: Width = Field(0, ge=0, description="Width F of node feature vectors.")
    edge_features: Width = Field(0, ge=0, description="Width of edge feature vectors.")
    segments: int = Field(4, ge=1, description="S: slices of a node's feature vector.")
    begun_as: str = Field(
        "",
        description="Checksum of the header that commit 0 was made under; empty, and left out of the file: this one.",
    )

    @property
    def link(self) -> str:
        """What commit 0 names as ``previous``."""
        return self.begun_as or self.checksum

    @model_serializer(mode="wrap")
    def _as_written(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        return content if self.begun_as else {k: v for k, v in content.items() if k != "begun_as"}


Key = tuple[str, int]
"""A topic partition: topic name and partition number."""


class Position(Frozen):
    """How far one topic partition has been read."""

    topic: str
    partition: Count
    next: Count = Field(description="Offset of the first message not yet in the log.")
    max_t_us: Int64 | None = Field(None, description="Largest event time accepted from it.")


class SealedSnapshot(Frozen):
    """One sealed snapshot as the commit that seals it records it."""

    tau: Int64
    events: FileRef
    nodes: FileRef
    arrivals: FileRef | None = Field(
        None,
        description="The commit that each event came with; absent if it was sealed before this was recorded.",
    )
    num_events: Count
    num_inserts: Count
    num_deletes: Count
    num_late: Count = Field(description="Events with t before the snapshot's start.")
    num_nodes: Count = Field(description="Dense ids in use after this snapshot: they are 0 … num_nodes − 1.")
    max_t_us: Int64

    @property
    def files(self) -> list[FileRef]:
        """All its files."""
        return [self.events, self.nodes, *([] if self.arrivals is None else [self.arrivals])]

    @model_serializer(mode="wrap")
    def _as_written(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        return content if self.arrivals is not None else {k: v for k, v in content.items() if k != "arrivals"}


class HistoryFile(Frozen):
    """A file of the history that a log begins with."""

    name: str = Field(description="Its name, without folders: a file may be moved.")
    rows: Count
    bytes: Count
    checksum: str = Field(description="xxh64, hex, of its first and its last MiB.")


class HistoryEnd(Frozen):
    """Where the history ends in one topic partition."""

    topic: str
    partition: Count
    start: Int64 | None = Field(description="Offset to read first; null: the first that Kafka retains.")
    end: Count = Field(
        description="Messages before this offset may be in the history, too; later ones are not."
    )


class HistoryRecord(Record):
    """``log/history.json``: files that the log begins with, and where Kafka takes over from them."""

    VERSIONS: ClassVar[tuple[int, ...]] = (FORMAT_VERSION, LABELS_NAMED)

    files: list[HistoryFile] = Field(description="In the order in which they are read.")
    until_us: Int64 = Field(
        description="Events before it are taken from the files, from it on from Kafka; microseconds."
    )
    rows: Count = Field(description="Of all files together.")
    after: Count = Field(description="Rows that lie at or after until_us and are left to Kafka.")
    disorder_us: Count = Field(description="How far a row's time lies at most before that of an earlier row.")
    ends: list[HistoryEnd] = Field(description="One a topic partition that there was when the log began.")
    events: int | None = Field(None, description="Its events in the log, once it is read.")
    refused: int | None = Field(None, description="Its rows that were refused, once it is read.")
    labels: list[HistoryFile] = Field(
        default_factory=list, description="Files of labels, which are read first; left out if there are none."
    )
    labels_until_us: Int64 | None = Field(
        None,
        description="Labels before it are taken from the files, from it on from Kafka; null: all of the files. Left out without "
        "labels.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="In records without reading: names of an event's columns in the files, if they differ.",
    )
    reading: dict[str, str | bool] = Field(
        default_factory=dict, description="Options that say how the files are read (--columns and others)."
    )
    surveyed: bool = Field(
        True, description="False: a backfill was begun with files of these names, and has not read them."
    )

    @property
    def label_rows(self) -> int:
        """Rows of all files of labels."""
        return sum(file.rows for file in self.labels)

    @model_serializer(mode="wrap")
    def _as_written(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        absent = () if self.labels else ("labels", "labels_until_us")
        return {k: v for k, v in content.items() if k not in absent}


class CommitRecord(Record):
    """``log/commits/<n>.json``: the log after commit n. A sealed snapshot exists iff a commit names it."""

    VERSIONS: ClassVar[tuple[int, ...]] = (FORMAT_VERSION, WITH_ARRIVALS, WITH_LABELS)

    n: int = Field(ge=0)
    previous: str = Field(description="Checksum of commit n − 1; of log.json for n = 0.")
    writer: str = Field(description="Id of the writer that made it.")
    wall_time_us: Int64
    positions: list[Position]
    topic_ids: dict[str, str] = Field(
        default_factory=dict,
        description="Kafka's id of each topic, where brokers have one: a topic made again under its name has another.",
    )
    tail: list[FileRef] = Field(description="All files of the open tail after this commit, oldest first.")
    tail_events: Count = Field(description="Events of the open tail that are still open.")
    rejects: FileRef | None = None
    labels: FileRef | None = Field(
        None, description="The labels that came with this commit; left out if there are none."
    )
    num_labels: Count = Field(0, description="Running total of labels; left out before the first.")
    refused: dict[str, Count] = Field(
        default_factory=dict, description="Running totals of rejects by reason."
    )
    late: Count = Field(0, description="Running total of late events, whatever the policy.")
    duplicates: Count = Field(0, description="Running total of events dropped by event_id.")
    in_history: Count = Field(
        0, description="Running total of Kafka's events that were skipped because the history has them."
    )
    published: Count = Field(
        0, description="Dead letters of commits before this one are known to be published."
    )
    sealed: list[SealedSnapshot] = Field(default_factory=list)
    sealed_through: Int64 | None = Field(
        None, description="Last τ that is closed; events of it or before are late."
    )

    @model_serializer(mode="wrap")
    def _as_written(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        absent = {
            name for name, value in (("labels", self.labels), ("num_labels", self.num_labels)) if not value
        }
        return {k: v for k, v in content.items() if k not in absent}


class Dropped(Frozen):
    """Totals over the snapshots that are no longer kept."""

    events: int = 0
    inserts: int = 0
    deletes: int = 0


class LogIndex(Record):
    """``log/index/<number>.json``: the content of commits 0 to n together, so that they need not be read one by one."""

    VERSIONS: ClassVar[tuple[int, ...]] = (FORMAT_VERSION, LABELS_NAMED)

    number: int = Field(ge=0, description="Counts the indexes of a log; the newest two are kept.")
    n: int = Field(ge=0)
    commit: str = Field(description="Checksum of commit n, after which the chain continues.")
    first: int = Field(ge=0, description="Number of the oldest sealed snapshot kept; the very first had 0.")
    end: int = Field(ge=1, description="Sealed snapshots up to commit n, dropped ones included.")
    dropped: Dropped = Field(default_factory=Dropped, description="Totals of the snapshots before the first.")
    snapshots: FileRef = Field(description="The kept snapshots, one row each.")
    ids: list[FileRef] = Field(description="External ids of all dense ones in use after n, in order.")
    base: FileRef | None = Field(
        None, description="The live graph before the first kept snapshot, as events; null if it is empty."
    )
    with_rejects: list[int] = Field(
        default_factory=list, description="Commits up to n whose rejects are kept."
    )
    labels: list[FileRef] = Field(
        default_factory=list,
        description="The kept labels of commits 0 to n, in order; left out if there are none.",
    )

    @model_serializer(mode="wrap")
    def _as_written(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        return content if self.labels else {k: v for k, v in content.items() if k != "labels"}


class LaneIndex(Record):
    """``lanes/<lane>/index/<number>.json``: the manifests up to a snapshot, so that they need not be read one by one."""

    number: int = Field(ge=0, description="Counts the indexes of a lane; the newest two are kept.")
    lane_checksum: str = Field(description="Checksum of lane.json.")
    sequence: int = Field(ge=0, description="The last manifest it covers.")
    first: int = Field(ge=0, description="Sequence of the oldest snapshot kept.")
    manifests: FileRef = Field(description="The manifests from the first on, one row each.")
    base: FileRef | None = Field(
        None, description="The content of all parts at the first kept snapshot, if older ones were dropped."
    )


LaneKind = Literal["vertex", "edge"]


class Why(IntEnum):
    """Why a (node, part) placement changed (column ``why`` of ``assignment.arrow``, int8)."""

    GONE = 0
    NEW = 1
    MOVED = 2
    REPLICATED = 3
    DEMOTED = 4


class LaneHeader(Record):
    """``lanes/<lane>/lane.json``: a partitioner and its parameters, fixed once the lane has a snapshot."""

    lane: str
    algorithm: str
    kind: LaneKind
    parts: int = Field(ge=1)
    window: int = Field(ge=1)
    edge_life: int | None = Field(
        None, description="Intervals an edge lives after its last occurrence; null: until deleted."
    )
    seed: int = 0
    base_every: int = Field(
        64,
        ge=1,
        description="Snapshots between bases when the lane was made; the configuration may change it.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="The partitioner's own parameters.")
    graph: str
    interval_us: int
    node_features: Width
    edge_features: Width
    segments: int


class PartSummary(Frozen):
    """One part of a lane snapshot."""

    nodes: Count
    edges: Count
    bytes: Count = Field(
        description="Payload bytes that this snapshot added to the part, index columns included."
    )
    full_bytes: Count = Field(description="Payload bytes of the part if it were stored whole.")


_MADE: dict[str, Any] = {name: (float | None, None if shown.new else ...) for name, shown in FIGURES.items()}
_Figures = create_model("_Figures", **_MADE)


class QualityRecord(_Figures):
    """Partition quality after a snapshot: the figures of ``freshet_graph.schemas.quality``, null if one has no meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float = Field(description="Seconds of the partitioner for this snapshot.")

    if TYPE_CHECKING:

        def __getattr__(self, figure: str) -> float | None: ...

    @classmethod
    def of(cls, quality: Quality, seconds: float) -> Self:
        """The record of a quality."""
        figures = {name: getattr(quality, name) for name in FIGURES}
        return cls(
            **{name: value if isfinite(value) else None for name, value in figures.items()}, seconds=seconds
        )

    @model_serializer(mode="wrap")
    def _as_written(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        return {name: value for name, value in content.items() if value is not None or name not in _NEW}


_NEW = {name for name, shown in FIGURES.items() if shown.new}


class LaneManifest(Record):
    """``lanes/<lane>/commits/<τ>.json``: a lane's snapshot τ and the log snapshot it was made from."""

    VERSIONS: ClassVar[tuple[int, ...]] = (FORMAT_VERSION, WHOLE_PAIRS)

    lane: str
    lane_checksum: str = Field(description="Checksum of lane.json: a manifest of another lane is refused.")
    tau: Int64
    sequence: int = Field(ge=0, description="0, 1, 2 … over the lane's non-empty snapshots.")
    previous: str = Field(description="Checksum of the lane's previous manifest; empty for the first.")
    log_events_checksum: str = Field(description="Checksum of the log's events.arrow of τ.")
    num_nodes: Count = Field(description="Dense ids in use in the log after τ.")
    num_events: Count
    live_nodes: Count
    live_edges: Count = Field(description="Directed pairs of the lane's live graph, edge life counted.")
    assignment: FileRef
    edges: FileRef
    segments: FileRef
    event_parts: FileRef | None = Field(
        None, description="Edge lanes: the part of every edge event of τ, −1 for discarded ones and deletes."
    )
    base: FileRef | None = None
    state: FileRef | None = None
    parts: list[PartSummary] = Field(description="One per part.")
    discarded: PartSummary | None = Field(None, description="Edge lanes: the pairs that no part holds.")
    quality: QualityRecord
    wall_time_us: Int64

    @staticmethod
    def version_of(*, whole_pairs: bool) -> int:
        """The format version of a manifest: a release that knows only changes must not take all pairs for some."""
        return WHOLE_PAIRS if whole_pairs else FORMAT_VERSION

    @property
    def whole_pairs(self) -> bool:
        """Whether ``edges.arrow`` lists all pairs of the snapshot instead of the changes."""
        return self.format_version == WHOLE_PAIRS
