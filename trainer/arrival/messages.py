"""Messages of scores on arrival."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Float32
from freshet_graph.stream.store.log.arrivals import Arrived
from freshet_graph.trainer.arrival.memory import Scored
from freshet_graph.trainer.data.history import Encounter

FEWEST = 100
"""Scores that there must be before a percentile means something."""

COUNTS = {
    "pair_events": Encounter.PAIR_COUNT,
    "source_events": Encounter.SRC_OUT_COUNT,
    "destination_events": Encounter.DST_IN_COUNT,
}


class Percentiles:
    """Says where a score stands among the newest ones.

    Args:
        among: How many.
    """

    def __init__(self, among: int) -> None:
        self._newest: Float32 = np.empty(0, np.float32)
        self._among = among

    def of(self, scores: Float32) -> Float32:
        """Percentiles 0 … 100 of scores, float32 (E,), among those before them; NaN while those are few. Then they count."""
        percentiles = self.standing(scores)
        self._newest = np.concatenate([self._newest, scores])[-self._among :]
        return percentiles

    def standing(self, scores: Float32) -> Float32:
        """As ``of``, but they do not count."""
        ordered = np.sort(self._newest)
        if len(ordered) < FEWEST:
            return np.full(len(scores), np.nan, np.float32)
        places = np.searchsorted(ordered, scores, side="right") * (100 / len(ordered))
        return places.astype(np.float32)


def messages(
    arrived: Arrived, scored: Scored, percentiles: Float32, said: dict[str, Any], now_s: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and fields (``schemas.written``) of each scored event, times in seconds.

    The key is the event's id, or ``commit/row`` without one; both identify a message: the same twice is a repetition.

    Args:
        arrived: A commit.
        scored: Its scores.
        percentiles: float32 (E,), NaN where there is none.
        said: Fields of all messages: the weights and what they know.
        now_s: Wall time, seconds.
    """
    columns = arrived.events.select(["event_id", "src", "dst", "t"]).take(scored.rows)
    for place, (row, event) in enumerate(zip(scored.rows.tolist(), columns.to_pylist(), strict=True)):
        t = event.pop("t") / US_PER_S
        content = {
            **event,
            "t": t,
            "commit": arrived.commit,
            "row": row,
            "score": number(scored.score[place]),
            "percentile": number(percentiles[place]),
            "label_probability": label_probability(scored, place),
            **said,
            "snapshot": scored.snapshot,
            "scored_at": now_s,
            "latency_s": now_s - t,
            "reasons": reasons(scored, place),
            "vector": None if scored.vectors is None else scored.vectors[place].tolist(),
        }
        yield event["event_id"] if event["event_id"] is not None else f"{arrived.commit}/{row}", content


def reasons(scored: Scored, place: int) -> dict[str, Any]:
    """The reasons of one score."""
    row = scored.encounters[place]
    counted: dict[str, Any] = {name: int(row[column]) for name, column in COUNTS.items()}
    return counted | {
        "pair_age_s": number(row[Encounter.PAIR_AGE]),
        "recent_share": number(scored.recent[place]),
    }


def label_probability(scored: Scored, place: int) -> float | None:
    """The probability of one event's label."""
    return None if scored.label_probability is None else number(scored.label_probability[place])


def number(value: np.floating[Any]) -> float | None:
    """A number as JSON has it; None if it is not finite."""
    return float(value) if np.isfinite(value) else None
