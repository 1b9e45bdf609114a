"""Predictions of a model and of the floors, side by side, and the figures made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from trainer.data.examples import Examples, Queries
from trainer.ranks import Ranks
from trainer.scoring.figures import Figures
from trainer.scoring.floors import edgebank, edgebank_window, recency
from trainer.scoring.ranking import area_under_roc, average_precision, batched, ranks_among

log = structlog.get_logger()

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

SCORERS = ("model", "random", "edgebank", "edgebank_window", "recency")
"""Columns of scores; ``random`` is a model with random weights, never trained."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Scores of n events and their negatives, in log order; every score table has a column a scorer.

    Attributes:
        positive: float64 (n, 5).
        negative: float64 (n, 5), the random negative of each event.
        fresh: bool (n,): an end of the event was new.
        historical_positive: float64 (h, 5), events for which a historical negative could be drawn.
        historical_negative: float64 (h, 5).
        ranks: float64 (r, 5), ranks of ranked events among their candidates, 1 is best; NaN where a score is none.
        event: int64 (n,), each event's place among its snapshot's inserts.
    """

    positive: Float64
    negative: Float64
    fresh: Bool
    historical_positive: Float64
    historical_negative: Float64
    ranks: Float64
    event: NDArray[np.int64]

    @property
    def scored(self) -> int:
        """Events that were predicted."""
        return len(self.positive)

    @property
    def links(self) -> "Predictions":
        """See ``Judged.links``."""
        return self

    def figures(self) -> Figures:
        """All figures by (metric, subset, scorer)."""
        found: dict[tuple[str, str, str], float | None] = {}
        subsets = {
            "all": (self.positive, self.negative),
            "inductive": (self.positive[self.fresh], self.negative[self.fresh]),
            "transductive": (self.positive[~self.fresh], self.negative[~self.fresh]),
            "historical": (self.historical_positive, self.historical_negative),
        }
        for column, scorer in enumerate(SCORERS):
            for subset, (positive, negative) in subsets.items():
                pair = positive[:, column], negative[:, column]
                found["ap", subset, scorer] = batched(average_precision, *pair)
                found["auc", subset, scorer] = batched(area_under_roc, *pair)
            rank = self.ranks[:, column]
            if len(rank) and not np.isnan(rank).any():
                found["mrr", "all", scorer] = float((1 / rank).mean())
                found["hits_at_10", "all", scorer] = float((rank <= 10).mean())
        return {key: value for key, value in found.items() if value is not None}


def join(parts: Sequence[Predictions]) -> Predictions:
    """Predictions of consecutive snapshots as one sequence."""
    columns = Predictions.__slots__
    return Predictions(*(np.concatenate([getattr(part, column) for part in parts]) for column in columns))


def judged_queries(examples: Examples) -> list[Queries]:
    """What is asked about a snapshot: events on time, random and historical negatives, candidates."""
    on_time = examples.of_events(~examples.inserts.late)
    return [on_time.positive, on_time.random, on_time.historical, on_time.candidates]


def side_by_side(
    examples: Examples,
    asked: list[Queries],
    logits: Sequence[NDArray[np.floating]],
    untrained: Sequence[NDArray[np.floating]],
    ranks: Ranks,
    window_s: float,
) -> Predictions | None:
    """Scores of a model beside those of the floors; a collective.

    Args:
        examples: This rank's.
        asked: ``judged_queries`` of them.
        logits: The model's score of each query.
        untrained: Those of random weights.
        ranks: All ranks.
        window_s: Of the floor that remembers pairs for so many seconds.

    Returns:
        On rank 0: predictions of all ranks. Elsewhere None.
    """
    tables = _gather(
        [
            np.stack(
                [
                    queries.event.astype(np.float64),
                    learned,
                    drawn,
                    edgebank(queries.encounters),
                    edgebank_window(queries.encounters, window_s),
                    recency(queries.encounters),
                ],
                axis=1,
            )
            for queries, learned, drawn in zip(asked, logits, untrained, strict=True)
        ],
        ranks,
    )
    if ranks.rank != 0:
        return None
    (event, positive), (_, negative), (old, historical), (ranked, candidates) = (
        (table[:, 0].astype(np.int64), table[:, 1:]) for table in tables
    )
    ranked = ranked[:: max(1, examples.num_candidates)]
    candidates = candidates.reshape(len(ranked), examples.num_candidates, len(SCORERS))
    true = positive[np.searchsorted(event, ranked)]
    true[np.isnan(candidates).any(axis=1)] = np.nan  # among scores that are no numbers there is no rank
    broken = sum(int(np.isnan(scores[:, 0]).sum()) for scores in (positive, negative, historical))
    if broken:
        log.warning(
            "the model's scores are not numbers; its figures are left out", tau=examples.tau, scores=broken
        )
    return Predictions(
        positive=positive,
        negative=negative,
        fresh=examples.fresh[event],
        historical_positive=positive[np.searchsorted(event, old)],
        historical_negative=historical,
        ranks=np.stack([ranks_among(true[:, s], candidates[:, :, s]) for s in range(len(SCORERS))], axis=1),
        event=event,
    )


def _gather(tables: list[Float64], ranks: Ranks) -> list[Float64]:
    """All ranks' tables on rank 0, rows by their first column; nothing elsewhere. One exchange for all of them."""
    kinds = np.repeat(np.arange(len(tables), dtype=np.float64), [len(table) for table in tables])
    own = np.column_stack([kinds, np.concatenate(tables)])
    to_first = [len(own), *[0] * (ranks.size - 1)]
    rows = ranks.exchange_array(own, to_first, ranks.exchange_sizes(to_first), "scores")
    found = [rows[rows[:, 0] == kind, 1:] for kind in range(len(tables))]
    return [table[np.argsort(table[:, 0], kind="stable")] for table in found]
