"""Numbers of recent walks between two nodes: sketches of temporal walk matrices (Lu et al. 2024, TPNet, section 3)."""

import numpy as np

from freshet_graph.stream.arrays.kinds import Float32, Float64, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.data.neighbours import mix64

SCALES_S: tuple[float, ...] = (6 * 3600.0, 14 * 86_400.0)
"""A step of a walk counts exp(−age / scale): one sketch for daily rhythms, one for months."""
STEPS = 2
"""Longest walk of a sketch; the product of two sketches counts walks of twice the length."""
WIDTH = 96
"""Width of a sketch: the error of a product falls with its root."""


def walk_width() -> int:
    """Width of ``WalkSketches.features``."""
    return len(SCALES_S) * ((STEPS + 1) ** 2 - 1 + 2 * STEPS)


class WalkSketches:
    """For each node, random projections of the walks that end in it, decaying with age.

    With P(u) a random ±1/√WIDTH vector per node, sketch 0 of u is P(u), and after an event (u, v, t) sketch l of u gains
    sketch l − 1 of v, and vice versa. So ⟨sketch i of u, sketch j of v⟩ is in expectation the sum over walks of i + j
    steps between u and v, each weighted by the decays of its steps. Nothing is learned.

    Attributes:
        sketch: float32 (nodes, scales, STEPS, WIDTH), as of each node's own time.
        time_us: int64 (nodes,), of its latest event.
    """

    def __init__(self, seed: int) -> None:
        self._seed = np.uint64(seed + 1)
        self.sketch: Float32 = np.zeros((0, len(SCALES_S), STEPS, WIDTH), np.float32)
        self.time_us: Int64 = np.zeros(0, np.int64)

    def reserve(self, num_nodes: int) -> None:
        """Make rows for ids below ``num_nodes``."""
        more = num_nodes - len(self.time_us)
        if more > 0:
            more = max(more, len(self.time_us) // 4)
            self.sketch = np.concatenate([self.sketch, np.zeros((more, *self.sketch.shape[1:]), np.float32)])
            self.time_us = np.concatenate([self.time_us, np.zeros(more, np.int64)])

    def add(self, src: Int64, dst: Int64, time_us: Int64, rows: tuple[Int64, Int64] | None = None) -> None:
        """Take in events in order of time.

        Args:
            src: int64 (E,).
            dst: int64 (E,).
            time_us: int64 (E,).
            rows: Places of the sketches of ``src`` and of ``dst``; None: their ids.
        """
        places = (src, dst) if rows is None else rows
        _add(self.sketch, self.time_us, (src, dst, time_us), places, np.array(SCALES_S), self._seed)

    def features(
        self, src: Int64, dst: Int64, time_us: Int64, rows: tuple[Int64, Int64] | None = None
    ) -> Float32:
        """Walks between pairs, seen from a time.

        Args:
            src: int64 (q,).
            dst: int64 (q,).
            time_us: int64 (q,), not before the nodes' latest events.
            rows: Places of the sketches of ``src`` and of ``dst``; None: their ids. A node without a row, or with row −1,
                has no walks.

        Returns:
            float32 (q, walk_width()), log(1 + walks): for each scale, walks of i + j steps for i, j ≤ STEPS, then walks
            from u, and from v, back to itself.
        """
        places = (src, dst) if rows is None else rows
        out = np.empty((len(src), walk_width()), np.float32)
        _features(
            (self.sketch, self.time_us), (src, dst, time_us), places, np.array(SCALES_S), self._seed, out
        )
        return np.log1p(np.maximum(out, 0, out=out), out=out)  # NumPy's takes a tenth of the compiler's time

    def packed(self, rows: Int64) -> Int32:
        """Sketches and times of rows int64 (n,) as one table (n, …) of the bits of both, zeros for row −1.

        So they cross in one exchange, and the sum over ranks, of which one has a row, is that row.
        """
        has_row, width = rows >= 0, int(np.prod(self.sketch.shape[1:]))
        table = np.zeros((len(rows), width + 2), np.int32)
        table[has_row, :width] = self.sketch[rows[has_row]].reshape(-1, width).view(np.int32)
        table[has_row, width:] = self.time_us[rows[has_row], None].view(np.int32)
        return table

    def unpacked(self, table: Int32) -> "WalkSketches":
        """Sketches with the same signatures from a table of ``packed``, maybe of another rank."""
        sketch = np.ascontiguousarray(table[:, :-2]).view(np.float32)
        time_us = np.ascontiguousarray(table[:, -2:]).view(np.int64)[:, 0]
        other = WalkSketches.__new__(WalkSketches)
        other._seed, other.sketch = self._seed, sketch.reshape(-1, *self.sketch.shape[1:])
        other.time_us = time_us
        return other

    @staticmethod
    def decayed(sketch: Float32, seconds: Float64) -> Float32:
        """Sketches (n, scales, STEPS, WIDTH) after ``seconds`` (n,) without events."""
        steps = np.arange(1, STEPS + 1)
        rate = steps[None, None, :] / np.array(SCALES_S)[None, :, None]
        later: Float32 = sketch * np.exp(-seconds[:, None, None] * rate)[..., None].astype(np.float32)
        return later


@njit(cache=True, nogil=True)
def _signature(node, seed, out):  # type: ignore[no-untyped-def]  # compiled
    """P(node): ±1/√width, a pure function of node and seed."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    unit = np.float32(1 / np.sqrt(len(out)))
    state = mix64(seed * golden) ^ mix64(np.uint64(node) + golden)
    for begin in range(0, len(out), 64):
        state += golden
        bits = mix64(state)
        for j in range(min(64, len(out) - begin)):  # independent bits, so that many are processed at once
            out[begin + j] = unit if (bits >> np.uint64(j)) & np.uint64(1) else -unit


@njit(cache=True, nogil=True)
def _decays(time_us, row, time, scales, out):  # type: ignore[no-untyped-def]  # compiled
    """Factors of a node's sketches at a time, float32 (scales, STEPS + 1)."""
    since = (time - time_us[row]) / 1e6 if 0 <= row < len(time_us) else 0.0
    for s in range(len(scales)):
        step = np.float32(np.exp(-since / scales[s]))
        out[s, 0] = 1
        for length in range(1, out.shape[1]):
            out[s, length] = out[s, length - 1] * step


@njit(cache=True, nogil=True)
def _add(sketch, time_us, events, rows, scales, seed):  # type: ignore[no-untyped-def]  # compiled
    src, dst, times = events
    rows_src, rows_dst = rows
    width, steps = sketch.shape[3], sketch.shape[2]
    ours = np.empty((steps + 1, width), np.float32)
    theirs = np.empty((steps + 1, width), np.float32)
    our_decays = np.empty((len(scales), steps + 1), np.float32)
    their_decays = np.empty_like(our_decays)
    for i in range(len(src)):
        u, v, t = rows_src[i], rows_dst[i], times[i]
        _signature(src[i], seed, ours[0])
        _signature(dst[i], seed, theirs[0])
        _decays(time_us, u, t, scales, our_decays)
        _decays(time_us, v, t, scales, their_decays)
        for s in range(len(scales)):
            for length in range(steps):
                for j in range(width):
                    ours[length + 1, j] = sketch[u, s, length, j] * our_decays[s, length + 1]
                    theirs[length + 1, j] = sketch[v, s, length, j] * their_decays[s, length + 1]
            for length in range(steps):
                for j in range(width):
                    sketch[u, s, length, j] = ours[length + 1, j] + theirs[length, j]
                    sketch[v, s, length, j] = theirs[length + 1, j] + ours[length, j]
        time_us[u] = t
        time_us[v] = t


@njit(cache=True, nogil=True, fastmath=True)
def _dot(a, b):  # type: ignore[no-untyped-def]  # compiled
    total = np.float32(0)
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@njit(cache=True, nogil=True)
def _features(walks, queries, rows, scales, seed, out):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``out`` with numbers of walks; decays are numbers, so products of sketches need no decayed copies."""
    src, dst, times = queries
    rows_src, rows_dst = rows
    sketch, time_us = walks
    width, steps = sketch.shape[3], sketch.shape[2]
    ours, theirs = np.empty(width, np.float32), np.empty(width, np.float32)
    our_decays = np.empty((len(scales), steps + 1), np.float32)
    their_decays = np.empty_like(our_decays)
    nothing = np.zeros((len(scales), steps, width), np.float32)
    features_per_scale = (steps + 1) ** 2 - 1 + 2 * steps
    for i in range(len(src)):
        u, v = rows_src[i], rows_dst[i]
        again = i > 0 and src[i] == src[i - 1] and times[i] == times[i - 1]  # as for candidates of one event
        if not again:
            _signature(src[i], seed, ours)
            _decays(time_us, u, times[i], scales, our_decays)
        _signature(dst[i], seed, theirs)
        _decays(time_us, v, times[i], scales, their_decays)
        of_u = sketch[u] if 0 <= u < len(sketch) else nothing
        of_v = sketch[v] if 0 <= v < len(sketch) else nothing
        for s in range(len(scales)):
            column = s * features_per_scale
            for b in range(steps):
                out[i, column] = _dot(ours, of_v[s, b]) * their_decays[s, b + 1]
                column += 1
            for a in range(steps):
                out[i, column] = _dot(of_u[s, a], theirs) * our_decays[s, a + 1]
                column += 1
                for b in range(steps):
                    out[i, column] = _dot(of_u[s, a], of_v[s, b]) * (
                        our_decays[s, a + 1] * their_decays[s, b + 1]
                    )
                    column += 1
            for a in range(steps):
                out[i, column] = (
                    out[i - 1, column] if again else _dot(of_u[s, a], of_u[s, a]) * our_decays[s, a + 1] ** 2
                )
                out[i, column + 1] = _dot(of_v[s, a], of_v[s, a]) * their_decays[s, a + 1] ** 2
                column += 2
