"""What a store holds, in numbers: its log, and every lane beside what full snapshots would take."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.events import Op, Reason
from schemas.store import LaneManifest
from stream.snapshots.delta import Int64
from stream.snapshots.pairs import pair_keys
from stream.store.lane.layout import lane_names
from stream.store.lane.reader import LaneReader
from stream.store.log.history import rows_read
from stream.store.log.reader import LogReader

_CHUNK_EVENTS = 1 << 22


def inspect(store: str | Path) -> dict[str, Any]:
    """Describe a store, as of its newest commits.

    Args:
        store: Folder of the store.

    Returns:
        The keys of the command line's contract (docs/cli.md). Counts are of sealed snapshots, ``open_events``
        of the rest; ``live_edges`` are directed pairs of the log's live graph, without edge life; ``bytes`` and
        ``full_bytes`` of a lane are payload, ``disk_bytes`` its files as they lie on the disk.

    Raises:
        ConfigMissingError: There is no log at this place.
        CorruptError, FormatVersionError: A record is damaged, or of another release.
    """
    lanes = [LaneReader(store, name) for name in lane_names(store)]
    log = lanes[0].log if lanes else LogReader(store)
    last = log.last
    refused = last.refused if last else {}
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), position in sorted(log.positions.items()):
        offsets.setdefault(topic, {})[str(partition)] = position.next
    return {
        "graph": log.header.graph,
        "interval_s": log.header.interval_us / 1_000_000,
        "snapshots": len(log.snapshots),
        "first": log.snapshots[0].tau if log.snapshots else None,
        "last": log.snapshots[-1].tau if log.snapshots else None,
        "events": sum(snapshot.num_events for snapshot in log.snapshots),
        "inserts": sum(snapshot.num_inserts for snapshot in log.snapshots),
        "deletes": sum(snapshot.num_deletes for snapshot in log.snapshots),
        "open_events": last.tail_events if last else 0,
        "nodes": log.snapshots[-1].num_nodes if log.snapshots else 0,
        "live_edges": _live_edges(log, lanes),
        "late": last.late if last else 0,
        "refused": sum(count for reason, count in refused.items() if reason != Reason.LATE),
        "duplicates": last.duplicates if last else 0,
        "log_bytes": sum(s.events.bytes + s.nodes.bytes for s in log.snapshots),
        "offsets": offsets,
        "history": _history(log),
        "lanes": {lane.header.lane: _describe(lane) for lane in lanes},
    }


def _history(log: LogReader) -> dict[str, Any] | None:
    """What the log begins with; None: with Kafka."""
    history = log.history
    if history is None:
        return None
    return {
        "until": history.until_us / 1_000_000,
        "rows": history.rows,
        "read": rows_read(log.positions),
        "skipped_in_kafka": log.last.in_history if log.last else 0,
    }


def added_bytes(manifests: list[LaneManifest]) -> tuple[int, int]:
    """Payload bytes that snapshots added to a lane, and what they would take were each stored whole."""
    summaries = [part for m in manifests for part in (*m.parts, m.discarded) if part is not None]
    return sum(part.bytes for part in summaries), sum(part.full_bytes for part in summaries)


def saving(added: int, full: int) -> float:
    """Share of bytes that additive storage saves: 1 − added / full; NaN where there is nothing to store."""
    return 1 - added / full if full else float("nan")


def _describe(lane: LaneReader) -> dict[str, Any]:
    added, full = added_bytes(lane.manifests)
    quality = lane.manifests[-1].quality if lane.manifests else None
    figures = ("cut", "replication_factor", "node_balance", "edge_balance", "moved_share", "shared_share")
    return {
        "snapshots": len(lane.manifests),
        "lag": len(lane.log.snapshots) - len(lane.manifests),
        "algorithm": lane.header.algorithm,
        "kind": lane.header.kind,
        "parts": lane.header.parts,
        "bytes": added,
        "full_bytes": full,
        "saving": saving(added, full),
        **{name: getattr(quality, name) if quality else None for name in figures},
        "update_s": sum(manifest.quality.seconds for manifest in lane.manifests),
        "disk_bytes": _disk_bytes(lane.root),
    }


def _disk_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # a state that its writer has just replaced
    return total


def _live_edges(log: LogReader, lanes: list[LaneReader]) -> int:
    """Live pairs of the log: from a lane that keeps edges until they are deleted, else from all events."""
    for lane in lanes:
        up_to_date = lane.manifests and lane.manifests[-1].tau == log.snapshots[-1].tau
        if up_to_date and lane.header.edge_life is None:
            return lane.manifests[-1].live_edges
    live: Int64 = np.empty(0, np.int64)
    keys: list[Int64] = []
    inserted: list[NDArray[np.bool_]] = []
    held = 0
    for snapshot in log.snapshots:
        events = log.events(snapshot.tau)
        op = events["op"].to_numpy()
        edge = op != Op.NODE
        keys.append(pair_keys(events["src_node"].to_numpy()[edge], events["dst_node"].to_numpy()[edge]))
        inserted.append(op[edge] == Op.INSERT)
        held += len(keys[-1])
        if held >= _CHUNK_EVENTS:
            live, keys, inserted, held = _after(live, keys, inserted), [], [], 0
    return len(_after(live, keys, inserted)) if keys else len(live)


def _after(live: Int64, keys: list[Int64], inserted: list[NDArray[np.bool_]]) -> Int64:
    """Live pairs after some events: those whose last event is an insert, and those that none touched."""
    backwards = np.concatenate(keys)[::-1]
    touched, last = np.unique(backwards, return_index=True)
    stays = np.concatenate(inserted)[::-1][last]
    return np.union1d(np.setdiff1d(live, touched, assume_unique=True), touched[stays])
