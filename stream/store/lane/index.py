"""The index of a lane: its manifests up to a snapshot in one look, each read only when somebody asks for it.

The manifests stay where they are, so an index that is lost or damaged costs time and nothing else, but for one thing:
where older snapshots were dropped it names the full state at the oldest kept one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from schemas.store import LaneHeader, LaneIndex, LaneManifest
from stream.store.errors import CorruptError, StoreError
from stream.store.files.data import read_table
from stream.store.files.records import read_record
from stream.store.lane.layout import index_name, manifest_name
from stream.store.log.index import index_numbers
from stream.store.places.place import Place

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
"""Columns of the rows of an index, a manifest each: its snapshot, its own checksum, and what sums are made of."""


class ManifestRows:
    """The rows of an index: manifests, read one by one as they are asked for."""

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
            CorruptError: It isn't the one that the index was made over.
        """
        at = sequence - self.first
        path = self._root / manifest_name(int(self.taus[at]))
        manifest = read_record(path, LaneManifest)
        expected = self.table["checksum"][at].as_py()
        if manifest.checksum != expected:
            raise CorruptError(
                f"{path} has the checksum {manifest.checksum}, the lane's index says {expected}. Restore it from a copy, "
                "or remove the lane's folder and let the stream job build it again"
            )
        return manifest


@dataclass(frozen=True, slots=True)
class LaneTotals:
    """What a lane's kept snapshots have together.

    Attributes:
        bytes: Payload that they added.
        full_bytes: Payload, were each stored whole.
        disk_bytes: Length of their files, bases included and states not.
        seconds: What the partitioner took.
    """

    bytes: int = 0
    full_bytes: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0

    def plus(self, rows: pa.Table) -> "LaneTotals":
        """With more manifests, as rows of an index."""
        sums = {name: np.asarray(rows[name]).sum() for name in ("bytes", "full_bytes", "disk_bytes")}
        return LaneTotals(
            **{name: getattr(self, name) + int(value) for name, value in sums.items()},
            seconds=self.seconds + float(np.asarray(rows["seconds"]).sum()),
        )


def disk_bytes(manifest: LaneManifest) -> int:
    """Length of a snapshot's files, without its state, which goes with the next but one."""
    files = (
        manifest.assignment, manifest.edges, manifest.segments, manifest.event_parts, manifest.base
    )  # fmt: skip
    return sum(file.bytes for file in files if file is not None)


def payload(manifest: LaneManifest) -> tuple[int, int]:
    """Payload bytes that a snapshot added to a lane, and what it would take stored whole."""
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
    """The newest index of a lane that can be read; None: there is none.

    Args:
        root: The lane's folder.
        header: Its header.
        after: Only one with a larger number.
    """
    listed = index_numbers(root)
    while listed and listed[0] > after:
        for number in listed:
            if number <= after:
                break
            try:
                return read_lane_index(root, header, number)
            except StoreError:  # the other copy, or the manifests themselves, say the same; verify reports it
                continue
        before, listed = listed, index_numbers(root)
        if listed == before:  # else they were replaced by newer ones meanwhile
            break
    return None


def read_lane_index(root: Place, header: LaneHeader, number: int) -> tuple[LaneIndex, ManifestRows]:
    """An index of a lane with its rows.

    Raises:
        StoreError: It isn't there, is damaged, or belongs to another lane.
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
