"""Estimate the disk, files, memory and opening time of a store from the rates of its stream.

Each constant is the width of a stored or held column (``docs/store-format.md``), or a measured value that says so. A test
compares the formulae with a store.
"""

import math
from dataclasses import asdict, dataclass

DAY_S = 86_400.0

EVENT_BYTES = 1 + 8 + 8 + 8 + 4 + 4 + 4 + 4 + 4 + 8 + 8 + 6 / 8
"""A row of ``events.arrow`` without features: op, src, dst, t, weight, offsets of features and event_id, feature_offset,
label, both dense ids, and the bits of nullable columns."""
ARRIVAL_BYTES = 4
"""A row of ``arrivals.arrow``."""
ID_BYTES = 8 + 8
"""A row of ``nodes.arrow`` with an int64 id; string ids take 12 and their text."""
TAIL_BYTES = EVENT_BYTES - 16 + 2 + 4 + 8 + 8 + ARRIVAL_BYTES
"""An open event: without dense ids, with topic, partition, offset, τ and commit."""
VALUE_BYTES = 4
PAIR_BITS_A_BYTE = 7.0
"""A pair change of a lane on the disk after zstd: 1 + log2(nodes) / 7 of its 21 bytes, measured on random pairs."""
SEGMENT_INDEX_BYTES = 3.0
"""Node and segment beside a segment's values, after zstd: measured 2 to 3 of 12 bytes."""
FILE_BYTES = 4096.0
"""Size of a small file beyond its rows: header, schema and footer in Arrow, rounded up to the disk's blocks."""
RECORD_BYTES = 4096.0
"""A commit, or a manifest of a few tens of parts."""

BASE_EVERY = 64

LIVE_PAIR_BYTES = 8 + 4 + 8 + 8 + 2 * 8 + 4 + 8
"""A live pair in a lane's memory: key, weight, time, snapshot; two entries of the adjacency; parts; work beside them."""
NODE_BYTES = 2 * (64 + 2 * 8 + 4 + 32)
"""A node in the stream's memory: the dictionary's slots, degrees, homes and the partitioner's state; twice, because growing
tables keep a reserve of the same size, and a copy while they grow (220 bytes were measured over 700,000)."""
WINDOW_PAIR_BYTES = 8 + 4 + 8
"""A pair in a trainer's window: key and weight, and its entry in an adjacency that is built on demand."""

STREAM_PROCESS_BYTES = 360 * 2.0**20
"""The stream's process with six nodes and one lane: interpreter, Beam, Arrow and kernels; 346 MiB were measured."""
TRAINER_PROCESS_BYTES = 960 * 2.0**20
"""A trainer's process with thirty nodes: interpreter, torch, Arrow and kernels; 926 MiB were measured."""

INDEXED_SNAPSHOT_S = 1.5e-6
COMMIT_READ_S = 1.2e-4
OPEN_S = 0.02
"""Seconds to open a store: per row of an index, per commit since the newest index, and fixed; measured on one core."""
UNINDEXED = 1024
"""An index is written after this many commits."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Rates and sizes of a stream and its lanes.

    Attributes:
        rate: Events per second.
        nodes: Distinct nodes in total.
        features: F, width of node features.
        interval_s: Length of a snapshot.
        lanes: Number of lanes.
        changed: Share of the nodes that get a new vector in a snapshot.
        repeated: Share of the events whose pair is live already.
        window: w, snapshots that trainers hold.
        keep_days: Days that log and lanes are kept.
        pairs: Distinct pairs in total; None: derived from ``repeated``.
        present_pairs: Live pairs of a store that is there already.
        present_bytes: Its log and lanes on the disk.
        present_days: Days between its first kept snapshot and its last one.
    """

    rate: float
    nodes: int
    features: int
    interval_s: float
    lanes: int = 1
    changed: float = 0.3
    repeated: float = 0.0
    window: int = 4
    keep_days: float = 365.0
    pairs: int | None = None
    present_pairs: int = 0
    present_bytes: float = 0.0
    present_days: float = 0.0

    @property
    def days_left(self) -> float:
        """Days until the store keeps ``keep_days``; 0: it does already."""
        return max(0.0, self.keep_days - self.present_days)

    def assumptions(self) -> list[str]:
        """The assumptions behind the figures, one sentence each."""
        if self.pairs is not None:
            pairs = f"Events are of {self.pairs:,} distinct pairs in all (--pairs)."
        elif self.repeated:
            pairs = f"{1 - self.repeated:.1%} of the events are of a new pair (--repeated {self.repeated:g})."
        else:
            pairs = (
                "Every event is of a new pair. Where pairs meet again memory and disk are far smaller: give --pairs, the "
                "number of distinct pairs, or --repeated, the share of events whose pair is known."
            )
        vectors = f"{self.changed:.1%} of the nodes get a new vector of {self.features} values in a snapshot (--changed)."
        present = []
        if self.present_days:
            grows = (
                f"It grows for {self.days_left:,.3g} more, to those of --keep-days, without new nodes"
                if self.days_left
                else f"Nothing of them is dropped, though --keep-days is {self.keep_days:,.3g}"
            )
            present = [
                f"The store has {self.present_pairs:,} live pairs, and {self.present_bytes / 2**20:,.1f} MiB of "
                f"{self.present_days:,.3g} days. {grows}. Retention drops snapshots, but no pair: pairs grow after that, too."
            ]
        return [
            *present,
            pairs,
            f"No pair is deleted, and no edge life ends, within {self.keep_days:g} days (--keep-days): memory is that of "
            "their end.",
            f"Events come evenly, {self.rate * self.interval_s:,.0f} in a snapshot.",
            *([vectors] if self.features else []),
            f"Processes take {STREAM_PROCESS_BYTES / 2**20:.0f} MiB (stream) and {TRAINER_PROCESS_BYTES / 2**20:.0f} MiB "
            "(trainer) for themselves. Not included are up to 512 MiB of messages in the stream while it catches up, and the "
            "trainer's model with what it remembers.",
            f"One process keeps {self.lanes} lane{'' if self.lanes == 1 else 's'} (--lanes), and one trainer holds all parts "
            f"of {self.window} snapshots (--window).",
        ]


@dataclass(frozen=True, slots=True)
class Plan:
    """The estimate; bytes are of the disk or of memory, never of both.

    Attributes:
        snapshots_a_day: Snapshots sealed per day.
        log_bytes_a_day: Files of sealed snapshots, and commits.
        lane_bytes_a_day: Files of all lanes, with bases, without states.
        disk_bytes_a_day: Log and lanes.
        files_a_day: Files that remain after compaction.
        kept_bytes: On the disk after ``keep_days``; with retention it then grows by larger bases only.
        kept_files: Files after ``keep_days``.
        open_tail_bytes: On the disk, events of the open snapshot.
        live_pairs: Live pairs after ``keep_days`` without a delete, or with an edge life of this length.
        stream_memory_bytes: The stream's process: itself, dictionary, and live graph and features of every lane.
        trainer_memory_bytes: A trainer's process that holds all parts: itself and its window.
        open_s: Opening the store, compacted, after ``keep_days``.
    """

    snapshots_a_day: float
    log_bytes_a_day: float
    lane_bytes_a_day: float
    disk_bytes_a_day: float
    files_a_day: float
    kept_bytes: float
    kept_files: float
    open_tail_bytes: float
    live_pairs: float
    stream_memory_bytes: float
    trainer_memory_bytes: float
    open_s: float

    def figures(self) -> dict[str, float]:
        """The fields by name: seconds as they are, the rest rounded to whole numbers."""
        return {name: value if name.endswith("_s") else round(value) for name, value in asdict(self).items()}


def plan(stream: Stream) -> Plan:
    """Estimate what a stream takes; a test holds the estimate near a real store's size.

    With n = DAY / interval snapshots per day, E = rate · interval events and V = changed · nodes new vectors per snapshot:
    log per day = n · ((E + V) · (event + arrival) + V · F · 4 + 3 files + a record); a lane per day =
    n · (2 · E · (1 − repeated) · pair + V · (F · 4 + index) + 3 files + a record) + n / 64 bases of the live pairs, each in two
    parts, and all vectors. A store that is there has its pairs and bytes already, and grows for the days that it lacks of
    ``keep_days``.
    """
    per_day = DAY_S / stream.interval_s
    events = stream.rate * stream.interval_s
    vectors = stream.changed * stream.nodes if stream.features else 0.0
    vector_bytes = stream.features * VALUE_BYTES
    rows, row_bytes = events + vectors, EVENT_BYTES + ARRIVAL_BYTES
    log_snapshot = rows * row_bytes + vectors * vector_bytes + 3 * FILE_BYTES + RECORD_BYTES
    log_day = per_day * log_snapshot

    pair_bytes = 1 + math.log2(max(2, stream.nodes)) / PAIR_BITS_A_BYTE
    new_pairs = events * (1 - stream.repeated)
    present = float(stream.present_pairs)
    growth = max(0.0, min(new_pairs * per_day * stream.days_left, float(stream.nodes) ** 2 - present))
    if stream.pairs is not None and stream.pairs < present + growth:
        to_come = max(0.0, stream.pairs - present)
        new_pairs *= to_come / growth if growth else 0.0  # on average: there are more at first
        growth = to_come
    live_pairs = present + growth
    base = 2 * live_pairs * pair_bytes + stream.nodes * (vector_bytes + SEGMENT_INDEX_BYTES)
    lane_snapshot = (
        2 * new_pairs * pair_bytes
        + vectors * (vector_bytes + 4 * SEGMENT_INDEX_BYTES)
        + 3 * FILE_BYTES
        + RECORD_BYTES
    )
    lane_day = stream.lanes * per_day * (lane_snapshot + base / BASE_EVERY)
    files = per_day * (3 + stream.lanes * (4 + 1 / BASE_EVERY))
    days = stream.present_days + stream.days_left
    snapshots = per_day * days
    features = stream.nodes * vector_bytes
    window = WINDOW_PAIR_BYTES * (live_pairs + 2 * new_pairs * (stream.window - 1))
    return Plan(
        snapshots_a_day=per_day,
        log_bytes_a_day=log_day,
        lane_bytes_a_day=lane_day,
        disk_bytes_a_day=log_day + lane_day,
        files_a_day=files,
        kept_bytes=stream.present_bytes
        + (log_day + lane_day) * stream.days_left
        + (0 if stream.present_days else stream.nodes * ID_BYTES),
        kept_files=files * days,
        open_tail_bytes=(events + vectors) * TAIL_BYTES + vectors * vector_bytes,
        live_pairs=live_pairs,
        stream_memory_bytes=STREAM_PROCESS_BYTES
        + stream.nodes * NODE_BYTES
        + stream.lanes * (live_pairs * LIVE_PAIR_BYTES + features),
        trainer_memory_bytes=TRAINER_PROCESS_BYTES
        + window
        + features
        + vectors * vector_bytes * (stream.window - 1),
        open_s=OPEN_S + snapshots * INDEXED_SNAPSHOT_S + min(UNINDEXED, snapshots) * COMMIT_READ_S,
    )
