"""A model of another program, judged by its scores: with the same events, negatives, figures and baselines."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from freshet_graph.stream.arrays.kinds import Bool, Float64, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.data.examples import Examples
from freshet_graph.trainer.data.history import Moment
from freshet_graph.trainer.evaluation.protocol import OfflineProtocol
from freshet_graph.trainer.evaluation.stored_negatives import read_given, whole_numbers
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.predictions import Predictions, scored_queries, side_by_side

REQUIRED = ("event", "score", "random_score")
OPTIONAL = ("historical_score", "candidate_scores")


class ForeignScores:
    """Scores of the test events and their negatives, by event.

    Args:
        path: Parquet, or CSV (``candidate_scores`` as numbers between spaces), with the columns of docs/training.md.

    Raises:
        Failure: It cannot be read, lacks a column, has values that are not numbers, or has an event twice.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        table = read_given(self.path, "--scores", REQUIRED, OPTIONAL, csv=True)
        event = whole_numbers(table, "event", f"--scores {path}").to_numpy()
        order = np.argsort(event, kind="stable")
        self.event: Int64 = event[order]
        twice = self.event[1:][self.event[1:] == self.event[:-1]]
        if len(twice):
            raise Failure(f"--scores {path} has event {twice[0]} more than once")
        self._scores = {
            name: self._numbers(table, name)[order]
            for name in (*REQUIRED[1:], "historical_score")
            if name in table.column_names
        }
        self._lists: pa.ChunkedArray | None = None
        if "candidate_scores" in table.column_names:
            self._require_lists(table["candidate_scores"].type)
            # converted on demand: about 2,000 events are ranked, and the file may have tens of millions
            self._lists, self._row = table["candidate_scores"], order
            self._chunk_begins = np.cumsum([0, *(len(chunk) for chunk in self._lists.chunks)])

    @property
    def ranks(self) -> bool:
        """Whether there are scores of candidates."""
        return self._lists is not None

    @property
    def has_historical(self) -> bool:
        """Whether there are scores of historical negatives."""
        return "historical_score" in self._scores

    def column(self, name: str, events: Int64) -> Float64:
        """The scores of some events, by number, in a column.

        Raises:
            Failure: An event is missing, or has no number.
        """
        place = np.searchsorted(self.event, events)
        is_scored = np.append(self.event, -1)[place] == events
        if not is_scored.all():
            raise Failure(
                f"--scores {self.path} lacks {int((~is_scored).sum())} of {len(events)} test events, the first is event "
                f"{events[~is_scored][0]}. Score every row of the negatives' file whose part is test"
            )
        scores = self._scores[name][place]
        self._require_numbers(name, np.isnan(scores), events)
        return scores

    def candidates(self, events: Int64, count: int) -> Float64:
        """Scores (r, count) of the candidates of ranked events.

        Raises:
            Failure: An event has none, or another number of scores.
        """
        candidate_scores = np.empty((len(events), count))
        for row, event in enumerate(events.tolist()):
            scores = self._list(event)
            if len(scores) != count:
                raise Failure(
                    f"--scores {self.path}: event {event} has {len(scores)} candidate_scores, the negatives' file has "
                    f"{count} candidates"
                )
            candidate_scores[row] = scores
        self._require_numbers("candidate_scores", np.asarray(np.isnan(candidate_scores).any(axis=1)), events)
        return candidate_scores

    def _require_numbers(self, name: str, absent: Bool, events: Int64) -> None:
        if absent.any():
            raise Failure(
                f"--scores {self.path}: {name} is not a number for {int(absent.sum())} test events, the first is event "
                f"{events[absent][0]}"
            )

    def _require_lists(self, kind: pa.DataType) -> None:
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        inner = kind.value_type if lists else kind
        text = pa.types.is_string(inner) or pa.types.is_large_string(inner)
        numbers = pa.types.is_floating(inner) or pa.types.is_integer(inner) or pa.types.is_null(inner)
        if not (numbers if lists else text or pa.types.is_null(kind)):
            raise Failure(
                f"--scores {self.path}: column candidate_scores is {kind}, expected lists of numbers, or text with spaces "
                "between numbers"
            )

    def _numbers(self, table: pa.Table, name: str) -> Float64:
        try:
            column = table[name].cast(pa.float64())
        except pa.ArrowException:
            raise Failure(
                f"--scores {self.path}: column {name} is {table[name].type}, expected numbers"
            ) from None
        numbers: Float64 = column.to_numpy()
        return numbers

    def _list(self, event: int) -> Float64:
        """The scores of an event's candidates; empty if the file has none."""
        place = int(np.searchsorted(self.event, event))
        if self._lists is None or place == len(self.event) or self.event[place] != event:
            return np.empty(0)
        row = int(self._row[place])
        chunk = int(np.searchsorted(self._chunk_begins, row, side="right")) - 1
        listed: Any = self._lists.chunk(chunk)[row - int(self._chunk_begins[chunk])].as_py() or ()
        try:
            return np.array(listed.split() if isinstance(listed, str) else listed, np.float64)
        except ValueError:
            raise Failure(
                f"--scores {self.path}: candidate_scores of event {event} are not numbers"
            ) from None


def evaluate_scores(
    scores: ForeignScores, protocol: OfflineProtocol, ranks: Ranks, moment: Moment = "batch"
) -> list[tuple[int, Predictions]]:
    """τ and predictions of each test snapshot by a file's scores, beside the baselines.

    The baselines know the past up to ``moment``. The column of random weights is NaN, so its figures are absent. So are those
    of historical negatives and of ranks if the file has no scores of these.

    Raises:
        Failure: The file lacks an event or a number, or has another number of candidates.
    """
    by_snapshot = []
    begin = 0
    for examples in protocol.every_snapshot(moment):
        tested = protocol.split.test(examples.inserts.visible_us)
        if tested.any():
            tested_examples = examples.of_events(tested)
            part = _snapshot_predictions(scores, tested_examples, begin, protocol.test_span_s, ranks)
            by_snapshot.append((examples.tau, part))
        begin += len(examples.inserts)
    if not any(part.opposed.any() for _, part in by_snapshot):
        raise Failure(
            f"--scores {scores.path}: the negatives' file has no random negatives, so there is nothing to judge. The data "
            "needs sources that do not meet every destination at once"
        )
    return by_snapshot


def _snapshot_predictions(
    scores: ForeignScores, examples: Examples, begin: int, window_s: float, ranks: Ranks
) -> Predictions:
    queries = scored_queries(examples)
    positive, random, historical, candidates = queries
    count = max(1, examples.num_candidates)
    logits = [
        scores.column("score", begin + positive.event),
        scores.column("random_score", begin + random.event),
        scores.column("historical_score", begin + historical.event)
        if scores.has_historical
        else np.full(len(historical), np.nan),
        scores.candidates(begin + candidates.event[::count], count).ravel()
        if scores.ranks
        else np.full(len(candidates), np.nan),
    ]
    untrained = [np.full(len(one), np.nan) for one in queries]
    predictions = side_by_side(examples, queries, logits, untrained, ranks, window_s)
    assert predictions is not None, "one rank is the first"
    return predictions
