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
        ordered = np.sort(self._newest)
        places = np.searchsorted(ordered, scores, side="right") * (100 / max(len(ordered), 1))
        self._newest = np.concatenate([self._newest, scores])[-self._among :]
        return (
            places.astype(np.float32) if len(ordered) >= FEWEST else np.full(len(scores), np.nan, np.float32)
        )


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
    counted = {name: scored.encounters[:, column].astype(int).tolist() for name, column in COUNTS.items()}
    age_s = scored.encounters[:, Encounter.PAIR_AGE]
    for place, (row, event) in enumerate(zip(scored.rows.tolist(), columns.to_pylist(), strict=True)):
        t = event.pop("t") / US_PER_S
        reasons: dict[str, Any] = {name: column[place] for name, column in counted.items()}
        reasons |= {"pair_age_s": _number(age_s[place]), "recent_share": _number(scored.recent[place])}
        content = {
            **event,
            "t": t,
            "commit": arrived.commit,
            "row": row,
            "score": _number(scored.score[place]),
            "percentile": _number(percentiles[place]),
            **said,
            "snapshot": scored.snapshot,
            "scored_at": now_s,
            "latency_s": now_s - t,
            "reasons": reasons,
            "vector": None if scored.vectors is None else scored.vectors[place].tolist(),
        }
        yield event["event_id"] if event["event_id"] is not None else f"{arrived.commit}/{row}", content


def _number(value: np.floating[Any]) -> float | None:
    return float(value) if np.isfinite(value) else None
