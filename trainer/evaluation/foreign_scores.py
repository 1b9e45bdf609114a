"""A model of somebody else, judged by its scores: the same events, negatives, figures and floors as for ours."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stream.service.failure import Failure
from trainer.data.examples import Examples
from trainer.evaluation.protocol import OfflineProtocol
from trainer.ranks import Ranks
from trainer.scoring.predictions import Predictions, join, judged_queries, side_by_side

Float64 = NDArray[np.float64]

REQUIRED = ("event", "score", "random_score")


class ForeignScores:
    """Scores of the test events and their negatives, by event.

    Args:
        path: Parquet, or CSV (``candidate_scores`` as numbers between spaces), with the columns of docs/training.md.

    Raises:
        Failure: It cannot be read, lacks a column, or has an event twice.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        table = self._read()
        missing = [name for name in REQUIRED if name not in table.column_names]
        if missing:
            raise Failure(f"--scores {path} has no column {', '.join(missing)}: docs/training.md lists them")
        table = table.sort_by("event")
        self.event = self._numbers(table, "event").astype(np.int64)
        twice = self.event[1:][self.event[1:] == self.event[:-1]]
        if len(twice):
            raise Failure(f"--scores {path} has event {twice[0]} more than once")
        self.score = self._numbers(table, "score")
        self.random = self._numbers(table, "random_score")
        self.historical = (
            self._numbers(table, "historical_score") if "historical_score" in table.column_names else None
        )
        self._candidates: dict[int, Float64] | None = None
        if "candidate_scores" in table.column_names:
            lists = zip(self.event.tolist(), table["candidate_scores"].to_pylist(), strict=True)
            self._candidates = {event: self._list(event, found) for event, found in lists if found}

    @property
    def ranks(self) -> bool:
        """Whether there are scores of candidates."""
        return self._candidates is not None

    def rows(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where events stand.

        Raises:
            Failure: One is not there.
        """
        at = np.searchsorted(self.event, events)
        there = np.append(self.event, -1)[at] == events
        if not there.all():
            raise Failure(
                f"--scores {self.path} lacks {int((~there).sum())} of {len(events)} test events, the first is event "
                f"{events[~there][0]}: score every row of the negatives' file whose part is test"
            )
        return at

    def candidates(self, events: NDArray[np.int64], count: int) -> Float64:
        """Scores (r, count) of the candidates of ranked events.

        Raises:
            Failure: An event has none, or another number.
        """
        found = np.empty((len(events), count))
        for row, event in enumerate(events.tolist()):
            scores = (self._candidates or {}).get(event)
            if scores is None or len(scores) != count:
                raise Failure(
                    f"--scores {self.path}: event {event} has {0 if scores is None else len(scores)} candidate_scores, the "
                    f"negatives' file has {count} candidates"
                )
            found[row] = scores
        return found

    def _read(self) -> pa.Table:
        try:
            if self.path.suffix == ".csv":
                return pyarrow.csv.read_csv(self.path)
            return pq.read_table(self.path)
        except (OSError, pa.ArrowException) as error:
            raise Failure(f"--scores {self.path} cannot be read: {' '.join(str(error).split())}") from None

    def _numbers(self, table: pa.Table, name: str) -> Float64:
        try:
            column = pc.cast(table[name], pa.float64())
        except pa.ArrowException:
            raise Failure(
                f"--scores {self.path}: column {name} is {table[name].type}, expected numbers"
            ) from None
        numbers: Float64 = column.to_numpy()
        return numbers

    def _list(self, event: int, found: Any) -> Float64:
        try:
            return np.array(found.split() if isinstance(found, str) else found, np.float64)
        except (ValueError, TypeError):
            raise Failure(
                f"--scores {self.path}: candidate_scores of event {event} are not numbers"
            ) from None


def judge(scores: ForeignScores, protocol: OfflineProtocol, ranks: Ranks) -> Predictions:
    """Predictions of the test events by a file's scores, beside the floors.

    The column of random weights is NaN: its figures are absent. So are those of historical negatives and of ranks,
    where the file has no scores of these.

    Raises:
        Failure: The file lacks an event, or has it with another number of candidates.
    """
    found = []
    begin = 0
    for examples in protocol.every_snapshot():
        tested = protocol.split.test(examples.inserts.visible_us)
        if tested.any():
            found.append(_judged(scores, examples.of_events(tested), begin, protocol.test_span_s, ranks))
        begin += len(examples.inserts)
    return join(found)


def _judged(
    scores: ForeignScores, examples: Examples, begin: int, window_s: float, ranks: Ranks
) -> Predictions:
    asked = judged_queries(examples)
    positive, random, historical, candidates = asked
    rows = scores.rows(begin + positive.event)
    count = max(1, examples.num_candidates)
    none = np.full(len(candidates), np.nan)
    logits = [
        scores.score[rows],
        scores.random[scores.rows(begin + random.event)],
        np.full(len(historical), np.nan)
        if scores.historical is None
        else scores.historical[scores.rows(begin + historical.event)],
        scores.candidates(begin + candidates.event[::count], count).ravel() if scores.ranks else none,
    ]
    untrained = [np.full(len(queries), np.nan) for queries in asked]
    judged = side_by_side(examples, asked, logits, untrained, ranks, window_s)
    assert judged is not None, "one rank is the first"
    return judged
