"""Describe a store in numbers: its log, and the bytes of every lane compared with full snapshots."""

from typing import Any

import numpy as np
import pyarrow.compute as pc

from freshet_graph.schemas.events import Op, Reason, show_time
from freshet_graph.schemas.quality import FIGURES
from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.stream.snapshots.pairs import pair_keys
from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.lane.index import LaneTotals, manifest_rows
from freshet_graph.stream.store.lane.layout import lane_names
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.commits import rows_read
from freshet_graph.stream.store.log.index import LogTotals
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.refusals import as_json, newest_refused
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.undisturbed import undisturbed

_CHUNK_EVENTS = 1 << 22

ASSUMPTIONS = (
    "Events, inserts, deletes and log_bytes count sealed snapshots, also those that are no longer kept; open_events the rest.",
    "live_edges counts directed pairs that no event deleted, without edge life.",
    "bytes of a lane is what its files hold, full_bytes what they would hold with every snapshot stored whole; disk_bytes is "
    "their size on the disk, compressed.",
)
"""How to read the figures."""

_OF_NOW = frozenset(
    {
        "committed",
        "open_events",
        "labels",
        "late",
        "refused",
        "refused_by_reason",
        "duplicates",
        "offsets",
        "history",
    }
)
"""Keys about the newest commit."""


def inspect(store: str | Place, as_of: AsOf | None = None) -> dict[str, Any]:
    """Describe a store, as of its newest commits or of an earlier moment.

    Args:
        store: Folder of the store.
        as_of: Count sealed snapshots up to this moment only. Keys about the newest commit (``_OF_NOW``) are left out then.

    Returns:
        The keys of the command line's contract (docs/cli.md); see also ``ASSUMPTIONS``.

    Raises:
        ConfigMissingError: There is no log at this place.
        RetainedError: No snapshot is that old, or it is no longer kept.
        CorruptError, FormatVersionError: A record is damaged, or from another release.
    """
    return undisturbed(store, lambda: _inspect(store, as_of))


def _inspect(store: str | Place, as_of: AsOf | None) -> dict[str, Any]:
    lanes = [LaneReader(store, name) for name in lane_names(store)]
    log = lanes[0].log if lanes else LogReader(store)
    last = log.last
    refused = {r: count for r, count in (last.refused if last else {}).items() if r != Reason.LATE}
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), position in sorted(log.positions.items()):
        offsets.setdefault(topic, {})[str(partition)] = position.next
    end = log.count(as_of)
    totals = log.totals if as_of is None else _totals(log, end)
    first, newest = log.snapshots.first, log.snapshots[end - 1] if end else None
    description = {
        "graph": log.header.graph,
        "interval_s": log.header.interval_us / 1_000_000,
        "snapshots": end,
        "kept": end - first,
        "first": log.snapshots[first].tau if end else None,
        "last": newest.tau if newest else None,
        "begins": show_time(log.snapshots[first].tau * log.header.interval_us) if end else None,
        "ends": show_time((newest.tau + 1) * log.header.interval_us) if newest else None,
        "committed": show_time(last.wall_time_us) if last else None,
        "events": totals.events,
        "inserts": totals.inserts,
        "deletes": totals.deletes,
        "open_events": last.tail_events if last else 0,
        "nodes": newest.num_nodes if newest else 0,
        "live_edges": _live_edges(log, lanes, end),
        "labels": _labels(log),
        "late": last.late if last else 0,
        "refused": sum(refused.values()),
        "refused_by_reason": as_json(newest_refused(log, refused)),
        "duplicates": last.duplicates if last else 0,
        "log_bytes": totals.bytes,
        "offsets": offsets,
        "history": _history(log),
        "assumptions": list(ASSUMPTIONS),
        "lanes": {lane.header.lane: _describe(lane, end, whole=as_of is None) for lane in lanes},
    }
    return (
        description
        if as_of is None
        else {key: value for key, value in description.items() if key not in _OF_NOW}
    )


def _labels(log: LogReader) -> dict[str, Any] | None:
    """The labels of label topics; None: the log never had one."""
    if log.last is None or not log.last.num_labels:
        return None
    labels = log.labels()
    by_source = labels["source"].fill_null("").value_counts().to_pylist()
    newest = pc.max(labels["visible_us"]).as_py()
    return {
        "taken": log.last.num_labels,
        "kept": labels.num_rows,
        "of_nodes": labels.num_rows - labels["node"].null_count,
        "newest_commit": labels["commit"][-1].as_py() if labels.num_rows else None,
        "visible": None if newest is None else show_time(newest),
        "by_source": {count["values"]: count["counts"] for count in by_source},
    }


def _totals(log: LogReader, end: int) -> LogTotals:
    totals = LogTotals(log.dropped.events, log.dropped.inserts, log.dropped.deletes)
    for snapshot in log.snapshots[:end]:
        totals.add(snapshot)
    return totals


def _history(log: LogReader) -> dict[str, Any] | None:
    """Past events read before Kafka; None if the log begins with Kafka."""
    history = log.history
    if history is None:
        return None
    return {
        "until": history.until_us / 1_000_000,
        "rows": history.rows,
        "read": rows_read(log.positions),
        "skipped_in_kafka": log.last.in_history if log.last else 0,
    }


def saving(added: int, full: int) -> float:
    """Share of bytes that additive storage saves: 1 − added / full; NaN if there is nothing to store."""
    return 1 - added / full if full else float("nan")


def _describe(lane: LaneReader, end: int, *, whole: bool) -> dict[str, Any]:
    done = min(end, len(lane.manifests))
    first = lane.manifests.first
    totals = lane.totals if whole else LaneTotals().plus(manifest_rows(lane.manifests[:done]))
    quality = lane.manifests[done - 1].quality if done > first else None
    figures = [name for name, shown in FIGURES.items() if shown.lane]
    return {
        "snapshots": max(0, done - first),
        "first": lane.manifests[first].tau if done > first else None,
        "lag": end - done,
        "algorithm": lane.header.algorithm,
        "kind": lane.header.kind,
        "parts": lane.header.parts,
        "window": lane.header.window,
        "bytes": totals.bytes,
        "full_bytes": totals.full_bytes,
        "saving": saving(totals.bytes, totals.full_bytes),
        **{name: getattr(quality, name) if quality else None for name in figures},
        "update_s": totals.seconds,
        "disk_bytes": lane.root.length() if whole else totals.disk_bytes,
    }


def _live_edges(log: LogReader, lanes: list[LaneReader], end: int) -> int:
    """Live pairs of the log: from a lane without edge life if possible, else from all events."""
    for lane in lanes:
        if lane.header.edge_life is None and lane.manifests.first < end <= len(lane.manifests):
            return lane.manifests[end - 1].live_edges
    base = log.base()
    live: Int64 = np.empty(0, np.int64)
    if base is not None:
        edge = base["op"].to_numpy() != Op.NODE
        live = np.sort(pair_keys(base["src_node"].to_numpy()[edge], base["dst_node"].to_numpy()[edge]))
    keys: list[Int64] = []
    inserted: list[Bool] = []
    num_events = 0
    for snapshot in log.snapshots[:end]:
        events = log.events(snapshot.tau)
        op = events["op"].to_numpy()
        edge = op != Op.NODE
        keys.append(pair_keys(events["src_node"].to_numpy()[edge], events["dst_node"].to_numpy()[edge]))
        inserted.append(op[edge] == Op.INSERT)
        num_events += len(keys[-1])
        if num_events >= _CHUNK_EVENTS:
            live, keys, inserted, num_events = _after(live, keys, inserted), [], [], 0
    return len(_after(live, keys, inserted)) if keys else len(live)


def _after(live: Int64, keys: list[Int64], inserted: list[Bool]) -> Int64:
    """Live pairs after some events: those whose last event is an insert, and those without an event."""
    backwards = np.concatenate(keys)[::-1]
    touched, last = np.unique(backwards, return_index=True)
    stays = np.concatenate(inserted)[::-1][last]
    return np.union1d(np.setdiff1d(live, touched, assume_unique=True), touched[stays])
