"""Run a whole event file through any partitioner and measure its quality, for ``freshet-stream partition``."""

import contextlib
import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import US_PER_S, Op, log_event_schema
from freshet_graph.schemas.quality import FIGURES
from freshet_graph.stream.arrays.kinds import Int32, Int64, UInt64
from freshet_graph.stream.kernels.bits import in_several
from freshet_graph.stream.partition.edge.base import uncovered_share
from freshet_graph.stream.partition.interface import (
    Assignment,
    Kind,
    OnlinePartitioner,
    PartitionError,
    Why,
    sees_training_part,
)
from freshet_graph.stream.partition.quality import share
from freshet_graph.stream.partition.vertex.foreign_rows import foreign_parts
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.sealing import densify, slice_events

_TIME_CONSTANTS_A_SPAN = 10
"""Default for algorithms with a time constant: this many per span of the file. SPEED's β = 0.1 has no unit; this value
reproduces its published discards (``docs/partitioning.md``)."""


@runtime_checkable
class WholeFile(Protocol):
    """A partitioner that sees a whole file, or its training part, before its first update."""

    def foresee(self, src: Int64, dst: Int64, t: Int64, num_nodes: int) -> None:
        """Take in all inserts: dense ids and µs, (E,) each, and the number of distinct nodes."""


def training_params(name: str, params: Mapping[str, Any], begin_us: int, until_us: int) -> dict[str, Any]:
    """Parameters of a partitioner for a file with a training part: those given, and what follows from the part.

    Args:
        name: A key of ``algorithms()``.
        params: As given by the user.
        begin_us: First time of the training part, microseconds.
        until_us: Its last time.

    Raises:
        PartitionError: The name is unknown, or the user gives the end of the training part.
    """
    if not sees_training_part(name):
        return dict(params)
    if "training_until" in params:
        raise PartitionError(f"training_until of {name} follows from the split. Leave it out")
    span_s = (until_us - begin_us) / US_PER_S
    constant = span_s / _TIME_CONSTANTS_A_SPAN if span_s > 0 else None
    return {"time_constant": constant, **params, "training_until": until_us / US_PER_S}


_CALLED = {"foreign_parts": "lambda"}
"""Names of figures on the command line, if they differ."""


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """Result for a file.

    Attributes:
        figures: The keys of the command's JSON, as listed in ``docs/partitioning.md``.
        kind: Kind of the partitioner.
        placement: Vertex: ``node, part``, every node of the file with its last owner, −1 if it never had one. Edge:
            ``src, dst, t, part`` of each insert in input order, ``t`` in seconds, part −1 if it was discarded. Ids are external.
    """

    figures: dict[str, Any]
    kind: Kind
    placement: pa.Table


def partition_events(
    events: pa.Table,
    partitioner: OnlinePartitioner,
    *,
    interval_us: int | None = None,
    num_slices: int | None = None,
    by_span: bool = True,
    node_features: int = 0,
    segments: int = 4,
    progress: Callable[[int], None] = lambda events: None,
) -> OfflineResult:
    """Partition a file's events snapshot by snapshot and measure.

    Seconds are those of the partitioner alone, without loading, dense ids, the live graph, quality and compilation.

    Args:
        events: Canonical events (``freshet_graph.schemas.events.event_schema``) in file order.
        partitioner: From ``create``; used up.
        interval_us: Length of a snapshot in µs.
        num_slices: Or the number of snapshots, of equal event count. Neither: the file is one snapshot.
        by_span: Give a partitioner with a ``time_constant`` that of a tenth of the file's span.
        node_features: Width of node feature vectors.
        segments: S slices of them.
        progress: Called with the number of events done after every snapshot.

    Raises:
        PartitionError: Nothing fits.
        ValueError: ``interval_us`` or ``num_slices`` is out of range, or both are given.
    """
    ordered, ids = densify(events)
    parts = partitioner.parts
    if by_span and hasattr(partitioner, "time_constant") and ordered.num_rows:
        span_s = (ordered["t"][-1].as_py() - ordered["t"][0].as_py()) / US_PER_S
        partitioner.time_constant = span_s / _TIME_CONSTANTS_A_SPAN if span_s > 0 else None
    _warm_up(copy.deepcopy(partitioner))

    inserts = ordered.filter(pc.equal(ordered["op"], int(Op.INSERT)))
    src, dst, t = (np.array(inserts[name].to_numpy()) for name in ("src_node", "dst_node", "t"))
    foresee_s = 0.0
    if isinstance(partitioner, WholeFile):
        start = time.perf_counter()
        partitioner.foresee(src, dst, t, len(ids))
        foresee_s = time.perf_counter() - start

    graph = LiveGraph(node_features=node_features, segments=segments)
    last_home = np.full(len(ids), -1, np.int32)
    masks = np.zeros((len(ids), -(-parts // 64)), np.uint64)
    event_parts: list[Int32] = []
    seconds: list[float] = []
    done = foreign = linked = 0
    for tau, snapshot in slice_events(ordered, interval_us=interval_us, num_slices=num_slices):
        delta = graph.apply(tau, snapshot)
        start = time.perf_counter()
        assignment = partitioner.update(delta)
        seconds.append(time.perf_counter() - start)
        partitioner.quality()
        home = partitioner.home()
        last_home[: len(home)] = np.where(home >= 0, home, last_home[: len(home)])
        if assignment.event_part is not None:
            _follow(masks, assignment)
            event_parts.append(assignment.event_part[delta.op > 0])
        else:
            foreign += int(foreign_parts(delta.rows, home, parts))
            linked += int((delta.rows.end > delta.rows.start).sum())
        done += snapshot.num_rows
        progress(done)

    quality = partitioner.quality()
    is_edge = partitioner.kind == "edge"
    if is_edge:
        quality = replace(quality, cut_final=uncovered_share(src, dst, last_home, in_several(masks)))
    else:
        quality = replace(quality, foreign_parts=share(foreign, linked))
    total_s = foresee_s + sum(seconds)
    figures = {
        "algorithm": partitioner.name,
        "kind": partitioner.kind,
        "parts": parts,
        "nodes": len(ids),
        "edges": inserts.num_rows,
        "snapshots": len(seconds),
        "seconds": total_s,
        "snapshot_seconds": seconds,
        "edges_per_s": share(inserts.num_rows, total_s),
        **{_CALLED.get(name, name): getattr(quality, name) for name in FIGURES},
    }
    if is_edge:
        parts_of = np.concatenate(event_parts) if event_parts else np.empty(0, np.int32)
        placement = _edge_placement(inserts, parts_of)
    else:
        placement = pa.table({"node": ids, "part": pa.array(last_home)})
    return OfflineResult(figures, partitioner.kind, placement)


def _follow(masks: UInt64, assignment: Assignment) -> None:
    """Update the parts of each node of an edge partitioner, as bits."""
    bit = np.uint64(1) << (assignment.part & 63).astype(np.uint64)
    node, word = assignment.node, assignment.part >> 6
    ends = assignment.why == Why.DEMOTED
    np.bitwise_and.at(masks, (node[ends], word[ends]), ~bit[ends])
    np.bitwise_or.at(masks, (node[~ends], word[~ends]), bit[~ends])


def _edge_placement(inserts: pa.Table, part: Int32) -> pa.Table:
    """``src, dst, t, part`` in the order of the input's rows."""
    order = pa.array(np.argsort(inserts["row"].to_numpy()))
    t = inserts["t"].to_numpy()
    seconds = t // US_PER_S if (t % US_PER_S == 0).all() else t / US_PER_S
    columns = {"src": inserts["src"], "dst": inserts["dst"], "t": pa.array(seconds), "part": pa.array(part)}
    return pa.table(columns).take(order)


def _warm_up(partitioner: OnlinePartitioner) -> None:
    """Run a toy stream through a throw-away partitioner, so that its kernels are compiled."""
    rows = [
        {"op": int(op), "src": src, "dst": dst, "t": i, "weight": 1.0, "src_node": src, "dst_node": dst}
        for i, (op, src, dst) in enumerate([(1, 0, 1), (1, 1, 2), (1, 2, 2), (-1, 0, 1), (1, 3, 0)])
    ]
    if isinstance(partitioner, WholeFile):
        ends = np.arange(4)
        partitioner.foresee(ends, ends, ends, 4)
    graph = LiveGraph()
    with contextlib.suppress(PartitionError):  # of the toy; the file's own is raised by its run
        for tau in range(2):
            partitioner.update(graph.apply(tau, pa.Table.from_pylist(rows, schema=log_event_schema("int"))))
