"""METIS (Karypis and Kumar 1998) on arrays, in a separate process that starts on demand (decision 0010)."""

import atexit
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import numpy as np

from stream.arrays.kinds import Int32, Int64
from stream.partition.interface import PartitionError
from stream.partition.vertex.metis_process import receive

_RECURSIVE_PARTS = 8
"""Up to this many parts, recursive bisection is as good as k-way and faster, according to METIS's manual."""
_SEEDS = 2**31


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
