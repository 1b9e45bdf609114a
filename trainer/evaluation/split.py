"""Training, validation and test events by quantiles of time."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.stream.service.failure import Failure


@dataclass(frozen=True, slots=True)
class Split:
    """Borders in event time: training up to and including the first, validation up to the second, then test.

    Attributes:
        train_until_us: Microseconds.
        validate_until_us: Microseconds.
    """

    train_until_us: float
    validate_until_us: float

    @property
    def borders(self) -> tuple[float, float]:
        """The last times, microseconds, of training and of validation."""
        return self.train_until_us, self.validate_until_us

    def train(self, t: Int64) -> Bool:
        """Mask of the times for training."""
        return t <= self.train_until_us

    def validate(self, t: Int64) -> Bool:
        """Mask of the times for validation."""
        return (t > self.train_until_us) & (t <= self.validate_until_us)

    def test(self, t: Int64) -> Bool:
        """Mask of the times for the test."""
        return t > self.validate_until_us


def parse_shares(text: str) -> tuple[float, float, float]:
    """Shares of training, validation and test, as ``0.7,0.15,0.15``.

    Raises:
        Failure: Not three numbers above 0 that add up to 1.
    """
    try:
        train, validate, test = (float(part) for part in text.split(","))
    except ValueError as error:
        raise Failure(f"--split must be three numbers like 0.7,0.15,0.15, found {text!r}") from error
    if not (min(train, validate, test) > 0 and abs(train + validate + test - 1) <= 1e-6):  # NaN is neither
        raise Failure(f"--split must be three numbers above 0 that add up to 1, found {text!r}")
    return train, validate, test


def split_by_time(t: Int64, shares: tuple[float, float, float], what: str = "insert events") -> Split:
    """Borders at the time quantiles of the shares; equal times stay together.

    Args:
        t: int64 (n,) times, microseconds.
        shares: Of training, validation and test.
        what: The times' owners, for sentences.

    Raises:
        Failure: A part would be empty.
    """
    if not len(t):
        raise Failure(f"the file has no {what} to evaluate on")
    if t.min() == t.max():
        raise Failure(
            f"all {len(t)} {what} have the same time, so none comes before another. "
            "evaluate needs events of at least three times"
        )
    borders = np.quantile(t, [shares[0], shares[0] + shares[1]])
    split = Split(float(borders[0]), float(borders[1]))
    counts = [int(part(t).sum()) for part in (split.train, split.validate, split.test)]
    if min(counts) == 0:
        raise Failure(
            f"the split gives {counts[0]} training, {counts[1]} validation and {counts[2]} test {what} (equal times "
            "stay together). Choose other shares with --split"
        )
    return split


_MASKED = 0x3A5C
"""Stream of random numbers of masked nodes."""


def draw_masked(inserts: pa.Table, split: Split, share: float, seed: int) -> pa.Array:
    """Draw the nodes that are hidden from training, as TGN's code does (Rossi et al. 2020, ``get_data``).

    Args:
        inserts: Insert events with ``src, dst, t``.
        split: By time.
        share: Of all nodes; they are drawn among those with an event after the training part.
        seed: Of the draw.

    Returns:
        Their external ids, ascending.
    """
    later = inserts.filter(pc.greater(inserts["t"], split.train_until_us))
    count = int(share * len(_ends(inserts)))
    candidates = _ends(later)
    drawn = np.random.default_rng([seed, _MASKED]).permutation(len(candidates))[:count]
    return candidates.take(pa.array(np.sort(drawn)))


def without_training_of(nodes: pa.Array, events: pa.Table, split: Split) -> pa.Table:
    """The events except those of some nodes, given by external ids, in the training part.

    Raises:
        Failure: No insert is left in the training part.
    """
    training = pc.less_equal(events["t"], split.train_until_us)
    hidden = pc.or_(pc.is_in(events["src"], nodes), pc.is_in(events["dst"], nodes))
    rest = events.filter(pc.invert(pc.and_(training, hidden)))
    if not pc.any(pc.and_(pc.equal(rest["op"], 1), pc.less_equal(rest["t"], split.train_until_us))).as_py():
        raise Failure(
            f"no training event is left without the {len(nodes)} masked nodes. Choose a smaller --masked-nodes"
        )
    return rest


def _ends(events: pa.Table) -> pa.Array:
    """Distinct nodes of events, ascending."""
    nodes = pc.unique(pa.chunked_array([*events["src"].chunks, *events["dst"].chunks], events["src"].type))
    return nodes.take(pc.sort_indices(nodes))
