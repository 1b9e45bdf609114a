"""Drift of inputs and scores: the population stability index of the newest events against those before them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Float32, Float64, Int64
from freshet_graph.trainer.labels.classifier import RowSample

BINS = 10
LEAST_SHARE = 1e-4
"""Of a bin, because the index of an empty one is infinite."""

SLOTS = 7
"""Parts of a span, after each of which the index is made again."""

_ROWS = 1000
"""Kept per slot. Without drift the mean of the index is about (BINS − 1) · (1/n + 1/m) for n and m rows (Yurdakul 2018,
"Statistical properties of population stability index"), .003 for two spans."""

_FEWEST = 500


def stability_index(
    reference: NDArray[np.floating],
    newest: NDArray[np.floating],
    reference_weight: Float64,
    newest_weight: Float64,
) -> float:
    """Population stability index Σ (a − r) ln(a / r) over bins between the deciles of the reference.

    r is a bin's share of the reference, and a that of the newest, each ``LEAST_SHARE`` at least. By custom less than .1 is
    no drift, and more than .25 a large one (Siddiqi, "Credit Risk Scorecards", 2006). Equal numbers are never in different
    bins, so a column with a frequent number has fewer bins.

    Args:
        reference: (n,), n ≥ 1.
        newest: (m,), m ≥ 1.
        reference_weight: (n,), how many events each stands for.
        newest_weight: (m,).
    """
    order = np.argsort(reference, kind="stable")
    mass = np.cumsum(reference_weight[order])
    deciles = np.searchsorted(mass, mass[-1] * np.arange(1, BINS) / BINS)
    edges = np.unique(reference[order[deciles]])
    shares = [
        np.bincount(np.searchsorted(edges, numbers), weight, len(edges) + 1) / weight.sum()
        for numbers, weight in ((reference, reference_weight), (newest, newest_weight))
    ]
    was, now = (share.clip(LEAST_SHARE) for share in shares)
    return float(((now - was) * np.log(now / was)).sum())


class Stability:
    """The index of some columns, of the newest span of event time against the span before it, in bounded memory.

    A span has ``SLOTS`` slots, of each of which a uniform sample is kept. Once a slot is over, both spans end with slots
    that are over. Nothing is said before both are full.

    Args:
        columns: Their names.
        span_s: Length of each of both spans, seconds.
        seed: Of the samples.

    Attributes:
        index: The newest index by column; a column of too few numbers is absent.
    """

    def __init__(self, columns: Sequence[str], span_s: float, seed: int) -> None:
        self._columns, self._seed = list(columns), seed
        self._slot_us = max(1, round(span_s * US_PER_S / SLOTS))
        self._first: int | None = None
        self._samples: dict[int, RowSample] = {}  # by slot, ascending
        self.index: dict[str, float] = {}

    def add(self, rows: Float32, time_us: Int64) -> None:
        """Take in events in order of time.

        Args:
            rows: float32 (n, columns); NaN: unknown.
            time_us: int64 (n,), not decreasing, microseconds.
        """
        slots, starts = np.unique(time_us // self._slot_us, return_index=True)
        for slot, part in zip(slots.tolist(), np.split(rows, starts[1:]), strict=True):
            if slot not in self._samples:
                self._begin(slot)
            sample = self._samples[slot]
            sample.add(part, np.random.default_rng([self._seed, slot % (1 << 63), sample.came]))

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {
            "first": self._first,
            "samples": {
                slot: {"rows": sample.rows, "came": sample.came} for slot, sample in self._samples.items()
            },
            "index": dict(self.index),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self._first, self.index = state["first"], dict(state["index"])
        self._samples = {}
        for slot, saved in state["samples"].items():
            self._samples[slot] = sample = RowSample(_ROWS, len(self._columns))
            sample.rows, sample.came = np.asarray(saved["rows"]).copy(), saved["came"]

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return sum(sample.rows.nbytes for sample in self._samples.values())

    def _begin(self, slot: int) -> None:
        """Begin a slot after all others; what was before is over."""
        over = max(self._samples, default=slot - 1)
        if self._first is None:
            self._first = slot
        elif self._first <= over - 2 * SLOTS + 1:
            spans = [
                {one: sample for one, sample in self._samples.items() if begin < one - over <= begin + SLOTS}
                for begin in (-2 * SLOTS, -SLOTS)
            ]
            self.index = self._of(*spans)
        self._samples[slot] = RowSample(_ROWS, len(self._columns))
        self._samples = {one: sample for one, sample in self._samples.items() if one > slot - 2 * SLOTS - 1}

    def _of(self, *spans: dict[int, RowSample]) -> dict[str, float]:
        rows, weights = zip(
            *(_joined(list(span.values()), len(self._columns)) for span in spans), strict=True
        )
        index = {}
        for column, name in enumerate(self._columns):
            known = [~np.isnan(part[:, column]) for part in rows]
            if all(mask.sum() >= _FEWEST for mask in known):
                numbers = [part[mask, column] for part, mask in zip(rows, known, strict=True)]
                index[name] = stability_index(
                    *numbers, *(weight[mask] for weight, mask in zip(weights, known, strict=True))
                )
        return index


def _joined(samples: list[RowSample], columns: int) -> tuple[Float32, Float64]:
    """Rows of several samples, and how many events each row stands for."""
    if not samples:
        return np.empty((0, columns), np.float32), np.empty(0)
    weight = [np.full(len(sample.rows), sample.came / len(sample.rows)) for sample in samples]
    return np.concatenate([sample.rows for sample in samples]), np.concatenate(weight)
