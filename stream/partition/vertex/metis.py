"""METIS (Karypis and Kumar 1998) on arrays, and the baselines made of it (DistDy, section 5.1).

METIS runs in a process of its own (``metis_process``) that starts on demand (decision 0010).
"""

import atexit
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.optional import package
from freshet_graph.stream.partition.interface import PartitionError, PartitionerSetting, register
from freshet_graph.stream.partition.vertex.base import VertexPartitioner, VertexPartitionerOptions
from freshet_graph.stream.partition.vertex.ldg import place_new
from freshet_graph.stream.partition.vertex.metis_process import receive
from freshet_graph.stream.snapshots.adjacency import build_adjacency
from freshet_graph.stream.snapshots.delta import SnapshotDelta
from freshet_graph.stream.snapshots.pairs import pair_keys

_RECURSIVE_PARTS = 8
"""Up to this many parts, recursive bisection is as good as k-way and faster, according to METIS's manual."""
_SEEDS = 2**31

NEW_NODE_SLACK = 1.05
"""Most nodes of a part relative to the mean before new nodes go elsewhere."""


class _Process:
    """The one METIS process of this process, and its lock."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._of_pid = 0

    def ask(self, request: list[Int64], nodes: int) -> Int64:
        """Send arrays and receive parts int64 (nodes,)."""
        with self._turn:
            child = self._started()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                for array in request:
                    child.stdin.write(array.tobytes())
                child.stdin.flush()
                failed = receive(child.stdout, 1)  # type: ignore[arg-type]
                if failed is not None and failed[0]:
                    raise PartitionError(child.stdout.read(int(failed[0])).decode())
                parts = None if failed is None else receive(child.stdout, nodes)  # type: ignore[arg-type]
            except BrokenPipeError:
                parts = None
            except (
                BaseException
            ):  # interrupted before the answer, which the next request would read as its own
                self._end()
                raise
            if parts is None:
                self._end()
                raise PartitionError(
                    f"METIS's process ended with status {child.returncode} on a graph of {nodes} nodes. "
                    "If memory ran out, choose byte-lp, distdy or ldg"
                )
            return parts

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._of_pid != os.getpid():
            # In its own session, so that a terminal's interrupt reaches it only as the end of its input.
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("metis_process.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self._of_pid = os.getpid()
            atexit.register(self.close)
        return self._child

    def close(self) -> None:
        """End the process if this one started it."""
        if self._child is not None and self._of_pid == os.getpid():
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for stream in (child.stdin, child.stdout):
            _close(stream)
        child.kill()  # METIS handles SIGTERM itself
        child.wait()


def _close(stream: IO[bytes] | None) -> None:
    try:
        if stream is not None:
            stream.close()
    except BrokenPipeError:  # unsent bytes for an ended process
        return


_PROCESS = _Process()


def metis(
    indptr: Int64,
    indices: Int32 | Int64,
    parts: int,
    seed: int,
    *,
    node_weights: Int64 | None = None,
    edge_weights: Int64 | None = None,
    tries: int = 1,
) -> Int32:
    """Partition an undirected graph by METIS; the same arguments give the same parts.

    Args:
        indptr: int64 (n + 1,).
        indices: (entries,) both directions of every pair, no self-loops.
        parts: K.
        seed: Any non-negative number; METIS takes it modulo 2³¹.
        node_weights: int64 (n,), not negative; all 1 by default.
        edge_weights: int64 (entries,), at least 1, equal in both directions.
        tries: Partitions that METIS makes, to take the best.

    Returns:
        Part of each node, int32 (n,) in [0, K).

    Raises:
        PartitionError: METIS ran out of memory.
    """
    nodes = len(indptr) - 1
    if parts == 1 or nodes == 0:
        return np.zeros(nodes, np.int32)
    if nodes <= parts:
        return np.arange(nodes, dtype=np.int32)  # METIS leaves parts empty and nodes together here
    given = [indptr, indices, *(w for w in (node_weights, edge_weights) if w is not None)]
    header = np.array(
        [
            nodes,
            len(indices),
            parts,
            seed % _SEEDS,
            parts <= _RECURSIVE_PARTS,
            tries,
            node_weights is not None,
            edge_weights is not None,
        ],
        np.int64,
    )
    request = [header, *(np.ascontiguousarray(array, np.int64) for array in given)]
    return _PROCESS.ask(request, nodes).astype(np.int32)


def metis_of_live(delta: SnapshotDelta, parts: int, seed: int, tries: int = 1) -> Int32:
    """METIS on a snapshot's live graph, the best of some tries: int32, one part per live node."""
    starts, neighbours = delta.live_graph()
    return metis(starts, neighbours, parts, seed, tries=tries)


def relabel(before: Int32, after: Int32, parts: int) -> Int32:
    """Rename the parts of ``after`` so that as few nodes as possible move (Hungarian method).

    Args:
        before: int32 (n,), −1 for nodes without a part.
        after: int32 (n,) in [0, K).
        parts: K.

    Returns:
        ``after`` under the best renaming, int32 (n,).
    """
    assignment = package("scipy.optimize", "METIS")

    old = before >= 0
    shared = np.bincount(after[old].astype(np.int64) * parts + before[old], minlength=parts * parts)
    name = np.empty(parts, np.int32)
    rows, columns = assignment.linear_sum_assignment(shared.reshape(parts, parts), maximize=True)
    name[rows] = columns
    renamed: Int32 = name[after]
    return renamed


class _NewToNeighbours(VertexPartitioner):
    """Old nodes stay, new ones go to their neighbours (``ldg``)."""

    def _new_to_neighbours(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        new = delta.entered
        return new, place_new(delta.rows, new, self._owner, self._nodes_per_part, NEW_NODE_SLACK, self.seed)


class MetisOptions(VertexPartitionerOptions):
    """Options of ``metis``."""

    growth: float = Field(
        2.0, gt=1, description="Pairs at a new partition relative to the last one, if the whole is unknown."
    )


@register
class Metis(_NewToNeighbours):
    """One METIS partition of the union of all snapshots, kept for ever (DistDy's "Metis").

    Offline it gets the whole file. A lane has no whole: there METIS takes the live graph of the first snapshot, and again that of
    each snapshot with ``growth`` times the pairs of the last one taken, renamed so that few nodes move; in between, nodes stay
    and new ones join their neighbours.
    """

    name: ClassVar[str] = "metis"
    Options: ClassVar[type[Section]] = MetisOptions

    def __init__(self, setting: PartitionerSetting, options: MetisOptions) -> None:
        super().__init__(setting, options)
        self.growth = options.growth
        self._whole: Int32 = np.empty(0, np.int32)
        self._entries = 0

    def foresee(self, src: Int64, dst: Int64, t: Int64, num_nodes: int) -> None:
        """Partition the union of a file's inserts: dense ids (E,) each."""
        keys = np.unique(pair_keys(src, dst))
        indptr, indices, _ = build_adjacency(num_nodes, keys, np.ones(len(keys), np.float32))
        self._whole = metis(indptr, indices, self.parts, self.seed)

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        if len(self._whole):
            new, part = self._new_to_neighbours(delta)
            known = new < len(self._whole)
            part[known] = self._whole[new[known]]
            return new, part
        if 2 * delta.num_pairs > self.growth * self._entries:
            self._entries = 2 * delta.num_pairs
            part = metis_of_live(delta, self.parts, self.seed)
            return delta.live, relabel(self._home[delta.live], part, self.parts)
        return self._new_to_neighbours(delta)

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {"whole": self._whole, "entries": np.array(self._entries)}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._whole, self._entries = memory["whole"], int(memory["entries"])


class MetisLayerOptions(VertexPartitionerOptions):
    """Options of ``metis-layer``."""

    keep_names: bool = Field(
        False,
        description="Rename each snapshot's parts so that as few nodes as possible move. The paper's baseline doesn't.",
    )


@register
class MetisLayer(VertexPartitioner):
    """METIS on each snapshot independently (DistDy's "Metis-layer")."""

    name: ClassVar[str] = "metis-layer"
    Options: ClassVar[type[Section]] = MetisLayerOptions

    def __init__(self, setting: PartitionerSetting, options: MetisLayerOptions) -> None:
        super().__init__(setting, options)
        self.keep_names = options.keep_names

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        owner = metis_of_live(delta, self.parts, self.seed)
        if self.keep_names:
            owner = relabel(self._home[delta.live], owner, self.parts)
        return delta.live, owner


@register
class GreedyStore(_NewToNeighbours):
    """METIS on the first snapshot, then every node stays; new ones go to their neighbours (DistDy's "Greedy").

    A lane whose nodes have all left starts again with METIS.
    """

    name: ClassVar[str] = "greedy-store"

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        if not self._nodes_per_part.any():
            return delta.live, metis_of_live(delta, self.parts, self.seed)
        return self._new_to_neighbours(delta)
