"""The report of a strategy on its hybrid batches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batches:
    """Hybrid batches of this rank since the last report.

    Attributes:
        size: Mean ``snapshots`` and ``vertices`` of a batch.
        epsilon: Probability that the adjuster chooses at random.
        reward: Its last reward.
        reservoir: Batches that may be used again, by size.
        reads: Batches by outcome: hit, fresh, again.
        waits_s: Seconds that training waited for each batch that was not ready.
        averages: Of all ranks' weights.
        divergence: The largest distance of a rank's weights from their mean, in units of the mean's norm; over all ranks.
    """

    size: dict[str, float]
    epsilon: float
    reward: float
    reservoir: dict[str, int]
    reads: dict[str, int]
    waits_s: list[float]
    averages: int
    divergence: float
