"""Questions to a scorer and their answers, without HTTP."""

from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, Field, StrictInt, StrictStr, ValidationError, model_validator

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.schemas.events import US_PER_S, IdKind
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.stream.service.config_file import sentences
from freshet_graph.trainer.arrival.labels import values_asked
from freshet_graph.trainer.arrival.memory import Scored
from freshet_graph.trainer.arrival.messages import Percentiles, label_probability, number, reasons
from freshet_graph.trainer.arrival.scorer import CheckpointMemory, Scorer

EVENTS, CANDIDATES = 100, 500
"""Most events of a question, and candidates of one. A hundred events take some 10 ms, as do two hundred candidates."""
TURN_S = 5.0
"""How long a question waits for its turn."""
_ID_BYTES = 256
_MOST_S = 1e11

Asked = TypeVar("Asked", bound=Section)
Id = StrictInt | Annotated[StrictStr, Field(min_length=1, max_length=_ID_BYTES)]
Moment = Annotated[float, Field(ge=-_MOST_S, le=_MOST_S, strict=True)]


class WrongQuestionError(FreshetError):
    """A question that cannot be answered, whenever it is asked."""


class EventAsked(Section):
    """An event that may happen."""

    src: Id = Field(description="Source: a number or a text, as in the stream. An unknown one is a new node.")
    dst: Id = Field(description="Destination.")
    t: Moment = Field(description="Event time, seconds since 1970.")
    weight: float | None = Field(
        None, description="As in the stream; null: 1. label_probability depends on it, and score does not."
    )
    features: list[float] | None = Field(None, max_length=65_536, description="Likewise; null: zeros.")
    event_id: StrictStr | None = Field(None, max_length=_ID_BYTES, description="Comes back with the score.")


class RankAsked(Section):
    """A source, and the destinations that it may meet."""

    src: Id = Field(description="Source.")
    t: Moment = Field(description="When, seconds since 1970.")
    candidates: list[Id] | None = Field(
        None, min_length=1, max_length=CANDIDATES, description="Destinations to rank. null: known ones."
    )
    k: int | None = Field(
        None, ge=1, le=CANDIDATES, strict=True,
        description="How many, the best first. null: 10, or all candidates that are given.",
    )  # fmt: skip
    only_new: bool = Field(
        False, strict=True, description="Whether known destinations that the source has met are left out."
    )

    @model_validator(mode="after")
    def _has_known_ones(self) -> Self:
        if self.only_new and self.candidates is not None:
            raise ValueError("only_new goes without candidates. Leave one of them out")
        return self


class Reasons(BaseModel):
    """What the past says, as in the topic."""

    pair_events: int
    pair_age_s: float | None
    source_events: int
    destination_events: int
    recent_share: float | None


class Ranked(BaseModel):
    """A score; see docs/arrival.md."""

    dst: int | str
    score: float | None = Field(description="Log-odds against a random destination; null: not finite.")
    percentile: float | None = Field(description="Among the newest scores of the topic.")
    reasons: Reasons
    vector: list[float | None] | None = None


class ScoreOfEvent(Ranked):
    """The score of an event."""

    src: int | str
    t: float
    event_id: str | None
    label_probability: float | None = Field(
        description="Task edge-classification: probability of label 1; null otherwise, and before it learned any."
    )


class Answer(BaseModel):
    """The weights, and the events that an answer knows."""

    graph: str
    model_version: str
    checkpoint: int
    memory: Literal["checkpoint", "log"]
    learned_until: float
    known_commit: int | None = Field(
        description="The newest commit of the log of which events are known; null: none."
    )
    known_rows: int | None = Field(
        description="While that commit is taken in, how many of its rows are known; null: all."
    )
    known_until: float | None = Field(
        description="Event time of the newest known event, seconds; null: none."
    )


class Version(Answer):
    """What answers at present."""

    version: str = Field(description="Of Freshet.")
    model: str
    ids: Literal["int", "string"] = Field(description="The kind of the graph's ids.")


class Scores(Answer):
    """Answer of /score."""

    scores: list[ScoreOfEvent] = Field(description="In the order of the events.")


class Ranking(Answer):
    """Answer of /rank."""

    src: int | str
    t: float
    destinations: list[Ranked] = Field(description="The best first.")
    ranked: int = Field(description="How many were scored.")
    of: int = Field(description="How many there are: given candidates, or known destinations.")


class Desk:
    """Answers questions with a scorer's memory, which it leaves as it is.

    Args:
        scorer: At work on another thread.
        percentiles: Of the topic's scores.
        model: The model's name.
    """

    def __init__(self, scorer: Scorer, percentiles: Percentiles, model: str) -> None:
        self._scorer, self._percentiles, self._model = scorer, percentiles, model

    def version(self, version: str) -> dict[str, Any]:
        """As ``Version``, of a version of Freshet."""
        with self._scorer.turns.question(TURN_S):
            known = self._scorer.known
            return {
                **known.said,
                **known.position,
                "version": version,
                "model": self._model,
                "ids": known.ids,
            }

    def score(self, content: Any) -> dict[str, Any]:
        """Answer ``/score``.

        Args:
            content: An object as ``EventAsked``, or a list of them.

        Returns:
            As ``Scores``.

        Raises:
            WrongQuestionError: It is something else.
            FullError: Too many questions wait.
            LateError: It waited for too long.
        """
        if isinstance(content, list) and not 0 < len(content) <= EVENTS:
            raise WrongQuestionError(
                f"the list has {len(content)} events, and a question has 1 to {EVENTS}. Ask several questions"
            )
        many = isinstance(content, list)
        events = [
            _read(EventAsked, one, f"event {row}" if many else "the event")
            for row, one in enumerate(content if many else [content])
        ]
        kind = self._scorer.known.ids
        src, dst = (_ids([getattr(one, name) for one in events], name, kind) for name in ("src", "dst"))
        with self._scorer.turns.question(TURN_S):
            known = self._scorer.known  # another takes over at any time
            values = None if known.memory.labels is None else _values(events, known.edge_features)
            scored = known.event_memory.ask(src, dst, _visible(known, [one.t for one in events]), values)
            said = {**known.said, **known.position}
        entries = [
            {
                "src": event.src,
                "t": event.t,
                "event_id": event.event_id,
                **entry,
                "label_probability": label_probability(scored, place),
            }
            for place, (event, entry) in enumerate(zip(events, self._entries(dst, scored), strict=True))
        ]
        return {**said, "scores": entries}

    def rank(self, content: Any) -> dict[str, Any]:
        """Answer ``/rank``, an object as ``RankAsked``, as ``Ranking``; see ``score``."""
        question = _read(RankAsked, content, "the question")
        kind = self._scorer.known.ids
        src, most = _ids([question.src], "src", kind), question.k
        given = None if question.candidates is None else _ids(question.candidates, "candidates", kind)
        with self._scorer.turns.question(TURN_S):
            known = self._scorer.known
            if given is None:
                most = most or 10
                dst, of = known.event_memory.destinations(src, CANDIDATES, unmet=question.only_new)
            else:
                dst, of = given, len(given)
            every = pa.array(np.repeat(src.to_numpy(zero_copy_only=False), len(dst)), src.type)
            scored = (
                known.event_memory.ask(every, dst, _visible(known, [question.t] * len(dst)))
                if len(dst)
                else None
            )
            said = {**known.said, **known.position}
        entries = [] if scored is None else self._entries(dst, scored)
        best = [] if scored is None else np.argsort(-scored.score, kind="stable")[:most].tolist()
        destinations = [entries[place] for place in best]
        return {
            **said, "src": question.src, "t": question.t, "destinations": destinations, "ranked": len(dst), "of": of,
        }  # fmt: skip

    def _entries(self, dst: pa.Array, scored: Scored) -> list[dict[str, Any]]:
        percentiles, entries = self._percentiles.standing(scored.score), []
        for place, end in enumerate(dst.to_pylist()):
            entry = {
                "dst": end,
                "score": number(scored.score[place]),
                "percentile": number(percentiles[place]),
                "reasons": reasons(scored, place),
            }
            if scored.vectors is not None:
                entry["vector"] = [number(value) for value in scored.vectors[place]]
            entries.append(entry)
        return entries


def _visible(known: CheckpointMemory, times_s: list[float]) -> Int64:
    """When events would count, int64 microseconds: a late one from the beginning of the first open snapshot on."""
    time_us = np.rint(np.array(times_s) * US_PER_S).astype(np.int64)
    return np.maximum(time_us, known.open_us)


def _values(events: list[EventAsked], width: int) -> Float32:
    """Weights and features as the classifier of labels sees them.

    Raises:
        WrongQuestionError: There are more or fewer features than the graph has.
    """
    for row, event in enumerate(events):
        if event.features is not None and len(event.features) != width:
            raise WrongQuestionError(
                f"event {row}: {len(event.features)} features, and edges of this graph have {width}"
            )
    return values_asked([event.weight for event in events], [event.features for event in events], width)


def _read(kind: type[Asked], content: Any, where: str) -> Asked:
    if not isinstance(content, dict):
        raise WrongQuestionError(f"{where} must be a JSON object, found {_KINDS[type(content)]}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise WrongQuestionError(f"{where}: {sentences(kind, content, error.errors()):.500}") from None


_KINDS = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _ids(ids: list[int | str], name: str, kind: IdKind) -> pa.Array:
    """Ids in the graph's kind, converted as the stream does.

    Raises:
        WrongQuestionError: One cannot be an id of this graph.
    """
    if kind == "string":
        texts = [str(one) for one in ids]
        for text in texts:
            if len(text.encode("utf-8", "surrogatepass")) > _ID_BYTES:
                raise WrongQuestionError(f"{name}: ids have at most {_ID_BYTES} bytes of UTF-8")
        try:
            return pa.array(texts, pa.string())
        except (UnicodeEncodeError, pa.ArrowInvalid):
            raise WrongQuestionError(f"{name}: a text is not UTF-8") from None
    try:
        return pa.array([int(one) if _is_number(one) else _refuse(one, name) for one in ids], pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        raise WrongQuestionError(f"{name}: ids are whole numbers of 64 bits, found a longer one") from None


def _is_number(one: int | str) -> bool:
    return isinstance(one, int) or (one.removeprefix("-").isdecimal() and one.isascii() and len(one) <= 20)


def _refuse(one: int | str, name: str) -> int:
    raise WrongQuestionError(f"{name}: ids of this graph are whole numbers, found the text {one!r:.60}")
