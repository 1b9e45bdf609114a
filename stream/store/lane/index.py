"""The index of a lane: its manifests up to a snapshot in one file, each read only on demand.

The manifests stay, so a lost or damaged index costs only time, with one exception: after older snapshots were dropped, it
names the full state at the oldest kept one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.store import LaneHeader, LaneIndex, LaneManifest
from freshet_graph.stream.store.errors import CorruptError, remedy
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.lane.layout import manifest_name
from freshet_graph.stream.store.log.index import newest_readable
from freshet_graph.stream.store.log.layout import index_name
from freshet_graph.stream.store.places.place import Place

INDEX_SCHEMA: Final = pa.schema(
    [
        pa.field("tau", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("full_bytes", pa.int64(), nullable=False),
        pa.field("disk_bytes", pa.int64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)
"""Columns of an index, one row per manifest: its snapshot, its checksum, and the summands of totals."""


class ManifestRows:
    """The rows of an index: manifests, read on demand."""

    def __init__(self, root: Place, first: int, table: pa.Table) -> None:
        self.first = first
        self.table = table.combine_chunks()
        self.taus = np.asarray(self.table["tau"])
        self._root = root

    def __len__(self) -> int:
        return self.table.num_rows

    def load(self, sequence: int) -> LaneManifest:
        """The manifest of a sequence number.

        Raises:
            CorruptError: It isn't the one in the index.
        """
        row = sequence - self.first
        path = self._root / manifest_name(int(self.taus[row]))
        manifest = read_record(path, LaneManifest)
        expected = self.table["checksum"][row].as_py()
        if manifest.checksum != expected:
            raise CorruptError(
                f"{path} has the checksum {manifest.checksum}, the lane's index says {expected}{remedy(path)}"
            )
        return manifest


@dataclass(frozen=True, slots=True)
class LaneTotals:
    """Totals of a lane's kept snapshots.

    Attributes:
        bytes: Payload that they added.
        full_bytes: Payload if each were stored whole.
        disk_bytes: Length of their files, with bases, without states.
        seconds: The partitioner's time.
    """

    bytes: int = 0
    full_bytes: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0

    def plus(self, rows: pa.Table) -> "LaneTotals":
        """Add manifests, given as rows of an index."""
        sums = {name: np.asarray(rows[name]).sum() for name in ("bytes", "full_bytes", "disk_bytes")}
        return LaneTotals(
            **{name: getattr(self, name) + int(value) for name, value in sums.items()},
            seconds=self.seconds + float(np.asarray(rows["seconds"]).sum()),
        )


def disk_bytes(manifest: LaneManifest) -> int:
    """Length of a snapshot's files, without its state, which the next but one replaces."""
    files = (
        manifest.assignment, manifest.edges, manifest.segments, manifest.event_parts, manifest.base
    )  # fmt: skip
    return sum(file.bytes for file in files if file is not None)


def payload(manifest: LaneManifest) -> tuple[int, int]:
    """Payload bytes that a snapshot added to a lane, and the bytes if it were stored whole."""
    summaries = [part for part in (*manifest.parts, manifest.discarded) if part is not None]
    return sum(part.bytes for part in summaries), sum(part.full_bytes for part in summaries)


def manifest_rows(manifests: list[LaneManifest]) -> pa.Table:
    """Manifests as rows of an index."""
    sizes = [payload(manifest) for manifest in manifests]
    columns = [
        pa.array([manifest.tau for manifest in manifests], pa.int64()),
        pa.array([manifest.checksum for manifest in manifests], pa.string()),
        pa.array([added for added, _ in sizes], pa.int64()),
        pa.array([full for _, full in sizes], pa.int64()),
        pa.array([disk_bytes(manifest) for manifest in manifests], pa.int64()),
        pa.array([manifest.quality.seconds for manifest in manifests], pa.float64()),
    ]
    return pa.table(columns, schema=INDEX_SCHEMA)


def newest_index(root: Place, header: LaneHeader, after: int = -1) -> tuple[LaneIndex, ManifestRows] | None:
    """The newest readable index of a lane; None: there is none.

    Args:
        root: The lane's folder.
        header: Its header.
        after: Only one with a larger number.
    """
    # Its copy, or the manifests themselves, say the same as a damaged one; verify reports it.
    return newest_readable(root, after, lambda number: read_lane_index(root, header, number))[0]


def read_lane_index(root: Place, header: LaneHeader, number: int) -> tuple[LaneIndex, ManifestRows]:
    """An index of a lane with its rows.

    Raises:
        StoreError: It is missing, damaged, or belongs to another lane.
    """
    path = root / index_name(number)
    index = read_record(path, LaneIndex)
    rows = ManifestRows(root, index.first, read_table(root, index.manifests, schema=INDEX_SCHEMA))
    if (index.number, index.lane_checksum) != (number, header.checksum):
        raise CorruptError(f"{path} is the index of another lane")
    if len(rows) != index.sequence + 1 - index.first or not len(rows):
        raise CorruptError(
            f"{path} covers {index.first} to {index.sequence}, {root / index.manifests.path} has {len(rows)} rows"
        )
    return index, rows
