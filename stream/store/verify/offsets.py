"""Find messages that a log has taken in twice, as far as the records still show it.

Sealed events carry no offsets. Commits, rejects and the open tail do, and a commit's counts say how many it took in.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.store import CommitRecord
from stream.snapshots.event_time import Key
from stream.store.places.place import Place

REMEDY = "the log has them twice. Read the topics into a new store"


def positions_of(record: CommitRecord | None) -> dict[Key, int]:
    """The next offset of each topic partition after a commit; empty before the first."""
    return {} if record is None else {(p.topic, p.partition): p.next for p in record.positions}


def taken_again(path: Place, before: CommitRecord, after: CommitRecord) -> Iterator[str]:
    """Problems of a commit that took events in without advancing any topic partition.

    Args:
        path: The later commit's.
        before: Commit n − 1.
        after: Commit n.
    """
    if not after.positions or positions_of(before) != positions_of(after):
        return  # the number of events per message is unknown, so any count may be right
    sealed = sum(snapshot.num_events for snapshot in after.sealed)
    taken = {
        "accepted": sealed + after.tail_events - before.tail_events,
        "refused": sum(after.refused.values()) - sum(before.refused.values()),
        "late": after.late - before.late,
        "duplicates": after.duplicates - before.duplicates,
        "in the history": after.in_history - before.in_history,
    }
    found = ", ".join(f"{what} {count:,}" for what, count in taken.items() if count > 0)
    if found:
        yield f"{path} took events in ({found}), though its offsets are those of commit {before.n}: {REMEDY}"
    if taken["accepted"] < 0:
        yield f"{path} has {-taken['accepted']} events fewer than commit {before.n}. Read the topics into a new store"


def rejected_again(path: Place, rejects: pa.Table, reached: Mapping[Key, int]) -> Iterator[str]:
    """Problems of refused messages whose offsets an earlier commit had reached.

    Args:
        path: The file of the rejects.
        rejects: ``REJECT_SCHEMA``.
        reached: ``positions_of`` the nearest kept earlier commit.
    """
    for source in rejects.group_by(["topic", "partition"]).aggregate([("offset", "min")]).to_pylist():
        key, first = (source["topic"], source["partition"]), source["offset_min"]
        if first < reached.get(key, first):
            yield (
                f"{path} has offset {first} of {key[0]}[{key[1]}], though an earlier commit had reached offset "
                f"{reached[key]}: {REMEDY}"
            )


class TailOffsets:
    """The offsets of an open tail's files, in order: each commit must continue after its predecessor."""

    def __init__(self) -> None:
        self._reached: dict[Key, int] = {}

    def follow(self, path: Place, tail: pa.Table) -> Iterator[str]:
        """Problems of the next file's offsets after those of earlier files.

        Args:
            path: The file's.
            tail: ``tail_schema``.
        """
        names = pc.cast(tail["topic"], pa.string()).combine_chunks().dictionary_encode()
        topics, codes = names.dictionary.to_pylist(), names.indices.to_numpy().astype(np.int64)
        source = codes << 32 | tail["partition"].to_numpy().astype(np.int64)
        offset = tail["offset"].to_numpy()
        order = np.argsort(source, kind="stable")
        source, offset = source[order], offset[order]
        starts = np.flatnonzero(np.concatenate(([True], source[1:] != source[:-1])))[: len(source)]
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(source)], strict=True):
            key = topics[source[start] >> 32], int(source[start] & 0xFFFFFFFF)
            own = offset[start:end]
            back = np.flatnonzero(own[1:] < own[:-1])
            reached = self._reached.get(key, int(own[0]))
            if own[0] < reached or len(back):
                at = int(own[0] if own[0] < reached else own[back[0] + 1])
                before = reached if own[0] < reached else int(own[back[0]]) + 1
                yield f"{path} has offset {at} of {key[0]}[{key[1]}] after offset {before - 1}: {REMEDY}"
            self._reached[key] = max(reached, int(own.max()) + 1)
