"""What a strategy that learns hybrid batches reports of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batches:
    """What became of hybrid batches since the report before, of this rank.

    Attributes:
        size: Mean ``snapshots`` and ``vertices`` of a batch.
        epsilon: Probability that the adjuster chooses at random.
        reward: Its last one.
        reservoir: Batches that may be used again, by size.
        reads: Batches by outcome: hit, fresh, again.
        waits_s: Seconds that training waited for each batch that was not there.
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
