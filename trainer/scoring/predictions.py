"""Predictions of a model and of the baselines, side by side, and their figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Float64, Int64
from freshet_graph.trainer.data.examples import Examples, Queries
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.baselines import edgebank, edgebank_window, recency, recency_popularity
from freshet_graph.trainer.scoring.metrics import Figures, batched_figures, jackknife, ranks_among

log = structlog.get_logger()


SCORERS = ("model", "random", "edgebank", "edgebank_window", "recency", "recency_popularity")
"""Columns of scores; ``random`` is a model with random weights, never trained."""
THRESHOLDS = {"model": 0.0, "random": 0.0, "edgebank": 0.5, "edgebank_window": 0.5}
"""Above them a scorer says that an event happens; the other scorers only rank."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Scores of n events and their negatives, in log order; every score table has a column per scorer.

    Attributes:
        positive: float64 (n, len(SCORERS)).
        negative: float64 (n, len(SCORERS)), the random negative of each event; NaN without one.
        fresh: bool (n,): an end of the event was new.
        historical_positive: float64 (h, len(SCORERS)), events for which a historical negative could be drawn.
        historical_negative: float64 (h, len(SCORERS)).
        ranks: float64 (r, len(SCORERS)), ranks of ranked events among their candidates, 1 is best; NaN if a score is
            not a number.
        event: int64 (n,), each event's place among its snapshot's inserts.
        sampled: bool (n,): random weights predicted the event, too; otherwise their columns are NaN.
        opposed: bool (n,): the event has a negative; the others are in no figure.
        masked: bool (n,): an end of the event was hidden from training.
        historical_event: int64 (h,), places of the events with a historical negative.
        ranked_event: int64 (r,), places of the ranked events.
    """

    positive: Float64
    negative: Float64
    fresh: Bool
    historical_positive: Float64
    historical_negative: Float64
    ranks: Float64
    event: Int64
    sampled: Bool
    opposed: Bool
    masked: Bool
    historical_event: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    ranked_event: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def scored(self) -> int:
        """Number of predicted events."""
        return len(self.positive)

    @property
    def links(self) -> "Predictions":
        """See ``Evaluation.links``."""
        return self

    @property
    def cautions(self) -> list[dict[str, Any]]:
        """See ``Evaluation.cautions``."""
        return []

    def rows(self) -> dict[str, NDArray[Any]]:
        """The model's scores of one snapshot's events, a row per event; see ``Evaluation.rows``."""
        historical, rank = np.full((2, self.scored), np.nan)
        historical[np.searchsorted(self.event, self.historical_event)] = self.historical_negative[:, 0]
        rank[np.searchsorted(self.event, self.ranked_event)] = self.ranks[:, 0]
        return {
            "event": self.event,
            "score": self.positive[:, 0],
            "random_score": self.negative[:, 0],
            "historical_score": historical,
            "rank": rank,
            "inductive": self.fresh,
        }

    def figures(self) -> Figures:
        """All figures by (metric, subset, scorer)."""
        figures: Figures = {}
        for subset, scorers, scores in self._tables():
            for metric, values in batched_figures(*scores).items():
                for scorer, value in zip(scorers, values.tolist(), strict=True):
                    figures[metric, subset, scorer] = value
        for metric, scorer, values in self._of_ranks():
            figures[metric, "all", scorer] = float(values.mean())
        for scorer, threshold in THRESHOLDS.items():
            rows, column = self.opposed & (self.sampled | (scorer != "random")), SCORERS.index(scorer)
            positive, negative = (scores[rows, column] for scores in (self.positive, self.negative))
            if len(positive) and not np.isnan(positive + negative).any():
                right = (positive > threshold).mean() + (negative <= threshold).mean()
                figures["accuracy", "all", scorer] = float(right / 2)
        return _without_nan(figures)

    def errors(self) -> Figures:
        """Standard errors of those ``figures`` that use a sample of the snapshot's events."""
        figures: Figures = {}
        share = self.sampled[self.opposed].mean() if self.opposed.any() else 1.0
        for subset, scorers, scores in self._tables():
            if share < 1 and (subset == "historical" or scorers == ("random",)):
                for metric, errors in jackknife(*scores).items():
                    for scorer, error in zip(scorers, errors.tolist(), strict=True):
                        figures[metric, subset, scorer] = error * float(np.sqrt(1 - share))
        ranked = len(self.ranks) / max(1, self.scored)
        for metric, scorer, values in self._of_ranks():
            if len(values) > 1 and ranked < 1:
                figures[metric, "all", scorer] = float(
                    values.std(ddof=1) * np.sqrt((1 - ranked) / len(values))
                )
        return _without_nan(figures)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of events for figures: ``sampled`` for those of random weights, ``ranked`` for MRR and Hits@10."""
        return {"sampled": int((self.sampled & self.opposed).sum()), "ranked": len(self.ranks)}

    def _tables(self) -> Iterator[tuple[str, tuple[str, ...], tuple[Float64, Float64]]]:
        """Subset, scorers, and their scores of events, and of negatives, (n, scorers)."""
        rest = tuple(scorer for scorer in SCORERS if scorer != "random")
        for scorers, known in ((("random",), self.opposed & self.sampled), (rest, self.opposed)):
            columns = [SCORERS.index(scorer) for scorer in scorers]
            subsets = {
                "all": known,
                "inductive": self.fresh,
                "transductive": ~self.fresh,
                "masked": self.masked,
            }
            for subset, here in subsets.items():
                rows = here & known
                yield subset, scorers, (self.positive[rows][:, columns], self.negative[rows][:, columns])
        yield "historical", SCORERS, (self.historical_positive, self.historical_negative)

    def _of_ranks(self) -> Iterator[tuple[str, str, Float64]]:
        """Metric, scorer and a value per ranked event, if all of them have a rank."""
        for column, scorer in enumerate(SCORERS):
            rank = self.ranks[:, column]
            if len(rank) and not np.isnan(rank).any():
                yield "mrr", scorer, 1 / rank
                yield "hits_at_10", scorer, (rank <= 10).astype(np.float64)


def _without_nan(figures: Figures) -> Figures:
    return {key: value for key, value in figures.items() if not np.isnan(value)}


def join(parts: Sequence[Predictions]) -> Predictions:
    """Predictions of consecutive snapshots as one sequence."""
    columns = Predictions.__slots__
    return Predictions(*(np.concatenate([getattr(part, column) for part in parts]) for column in columns))


def scored_queries(examples: Examples) -> list[Queries]:
    """The questions about a snapshot: events on time, random and historical negatives, candidates."""
    on_time = examples.of_events(~examples.inserts.late)
    return [on_time.positive, on_time.random, on_time.historical, on_time.candidates]


def side_by_side(
    examples: Examples,
    queries: list[Queries],
    logits: Sequence[NDArray[np.floating]],
    untrained: Sequence[NDArray[np.floating]],
    ranks: Ranks,
    window_s: float,
) -> Predictions | None:
    """Scores of a model beside those of the baselines; a collective.

    Args:
        examples: This rank's.
        queries: ``scored_queries`` of them.
        logits: The model's score of each query.
        untrained: Those of random weights.
        ranks: All ranks.
        window_s: Memory of the baseline that remembers pairs for a time, seconds.

    Returns:
        On rank 0 the predictions of all ranks, elsewhere None.
    """
    tables = gather(
        [
            np.stack(
                [
                    one.event.astype(np.float64),
                    learned,
                    drawn,
                    edgebank(one.encounters),
                    edgebank_window(one.encounters, window_s),
                    recency(one.encounters),
                    recency_popularity(one.encounters),
                ],
                axis=1,
            )
            for one, learned, drawn in zip(queries, logits, untrained, strict=True)
        ],
        ranks,
    )
    if ranks.rank != 0:
        return None
    (event, positive), (drawn_for, drawn), (old, historical), (ranked, candidates) = (
        (table[:, 0].astype(np.int64), table[:, 1:]) for table in tables
    )
    ranked = ranked[:: max(1, examples.num_candidates)]
    candidates = candidates.reshape(len(ranked), examples.num_candidates, len(SCORERS))
    opposed = np.isin(event, drawn_for)
    negative = np.full_like(positive, np.nan)
    negative[opposed] = drawn
    true = positive[np.searchsorted(event, ranked)]
    true[np.isnan(candidates).any(axis=1)] = np.nan  # there is no rank among scores that are not numbers
    broken = sum(int(np.isnan(scores[:, 0]).sum()) for scores in (positive, drawn, historical))
    if broken:
        log.warning(
            "the model's scores are not numbers; its figures are left out", tau=examples.tau, scores=broken
        )
    return Predictions(
        positive=positive,
        negative=negative,
        opposed=opposed,
        fresh=examples.fresh[event],
        historical_positive=positive[np.searchsorted(event, old)],
        historical_negative=historical,
        ranks=np.stack([ranks_among(true[:, s], candidates[:, :, s]) for s in range(len(SCORERS))], axis=1),
        event=event,
        sampled=examples.in_sample[event],
        masked=np.zeros(len(event), np.bool_) if examples.masked is None else examples.masked[event],
        historical_event=old,
        ranked_event=ranked,
    )


def gather(tables: list[Float64], ranks: Ranks) -> list[Float64]:
    """All ranks' tables on rank 0, with rows in order of their first column; elsewhere empty. A collective."""
    kinds = np.repeat(np.arange(len(tables), dtype=np.float64), [len(table) for table in tables])
    numbered_rows = np.column_stack([kinds, np.concatenate(tables)])
    to_first = [numbered_rows.size, *[0] * (ranks.size - 1)]
    values, _ = ranks.exchange_blocks(numbered_rows.view(np.int64).ravel(), to_first, "scores", to=0)
    rows = values.view(np.float64).reshape(-1, numbered_rows.shape[1])
    by_kind = [rows[rows[:, 0] == kind, 1:] for kind in range(len(tables))]
    return [table[np.argsort(table[:, 0], kind="stable")] for table in by_kind]
