"""Questions to a scorer's memory: the score that the next event would have, and nothing changed by asking."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from exporting_trainers import ONCE
from small_trainers import config_for, run
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.snapshots.dictionary import new_dictionary
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.arrivals import Arrivals
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.arrival.memory import ArrivalMemory, Scored
from freshet_graph.trainer.arrival.messages import Percentiles
from freshet_graph.trainer.arrival.questions import CANDIDATES, EVENTS, Desk, WrongQuestionError
from freshet_graph.trainer.arrival.scorer import NOTHING, Scorer
from freshet_graph.trainer.arrival.turns import FullError, LateError, Turns
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import newest_checkpoint

SMALL = {"memory": 8, "time_width": 8}
MODELS: dict[str, dict[str, Any]] = {
    "tgn-history": {}, "tgn": {"neighbours": 3, "heads": 2}, "two-layers": {"neighbours": 3, "layers": 2},
    "uniform": {"neighbours": 3, "how": "uniform"}, "jodie": {}, "dyrep": {"neighbours": 3}, "tige": {"neighbours": 3},
    "graphmixer": {}, "by event": {},
}  # fmt: skip
NEW = 10**6


def trained(folder: Path, name: str = "tgn-history", **more: Any) -> TrainerConfig:
    make_lane(folder / "store", events=meetings(nodes=60))
    model = {"two-layers": "tgn", "uniform": "tgn", "by event": "graphmixer"}.get(name, name)
    params = {} if model == "graphmixer" else {**SMALL, **MODELS[name]}
    more = {"history_moment": "event", **more} if name == "by event" else more
    config = config_for(
        folder, model=model, strategy="sequential", optimisation=ONCE, model_params=params, **more
    )
    run(config, snapshots=3)
    return config


def memory(config: TrainerConfig) -> ArrivalMemory:
    lane = LaneReader(config.store, config.lane)
    newest = newest_checkpoint(config, lane)
    assert newest is not None
    return ArrivalMemory(config, lane, Ranks(), newest[1], vectors=True)


def commits(config: TrainerConfig) -> list[pa.Table]:
    return [one.events for one in Arrivals(LogReader(config.store), after=2).new()]


def single(events: pa.Table, src: int, dst: int, t: int) -> pa.Table:
    one = events.slice(0, 1)
    for name, value in {"src": src, "dst": dst, "t": t, "op": 1, "tau": 0}.items():
        field = one.schema.field(name)
        one = one.set_column(
            one.schema.get_field_index(name), field, pa.chunked_array([pa.array([value], field.type)])
        )
    return one


def ask(of: ArrivalMemory, *events: tuple[int, int, int]) -> Scored:
    src, dst, t = (list(column) for column in zip(*events, strict=True))
    return of.ask(pa.array(src), pa.array(dst), np.array(t, np.int64))


def bits(scored: Scored | None) -> list[bytes]:
    assert scored is not None and scored.vectors is not None
    return [one.tobytes() for one in (scored.score, scored.encounters, scored.recent, scored.vectors)]


@pytest.mark.parametrize("name", MODELS)
def test_an_answer_is_the_score_of_the_next_commit_bit_for_bit(name: str, tmp_path: Path) -> None:
    config = trained(tmp_path, name)
    first, *_ = commits(config)
    asked, never = memory(config), memory(config)
    newest_us = int(max(first["t"].to_pylist()))
    for of in (asked, never):
        of.take(first)
    for place, (src, dst) in enumerate(
        [(1, 2), (1, NEW), (NEW + 1, NEW + 2), (NEW + 3, NEW + 3), (NEW + 4, 2)]
    ):
        t = newest_us + 10**7 * place - 10**6  # the first one is late
        others = [(place, 7, t + other) for other in range(3)]
        answers = [ask(asked, (src, dst, t)), ask(asked, (src, dst, t))]
        ask(asked, *others, (src, dst, t), (NEW + 9, NEW + 8, t))
        event = single(first, src, dst, t)
        one, other = asked.take(event), never.take(event)
        assert bits(answers[0]) == bits(answers[1]) == bits(one) == bits(other)
    assert np.isfinite(one.score).all()


@pytest.mark.parametrize("name", MODELS)
def test_events_of_a_list_do_not_see_each_other(name: str, tmp_path: Path) -> None:
    config = trained(tmp_path, name)
    of = memory(config)
    t = int(commits(config)[-1]["t"][0].as_py()) + 10**8
    events = [(1, 2, t), (1, 2, t + 5_000_000), (3, NEW, t), (NEW, 3, t), (NEW, NEW + 1, t + 1), (1, 2, t)]
    together = ask(of, *events)
    alone = [ask(of, one) for one in events]
    for column in ("score", "encounters", "recent", "vectors"):
        one_by_one = np.concatenate([getattr(one, column) for one in alone])
        np.testing.assert_allclose(getattr(together, column), one_by_one, rtol=2e-4, atol=2e-5)
    assert name == "dyrep" or together.score[0] != together.score[1]


@pytest.mark.parametrize("name", MODELS)
def test_within_a_commit_answers_know_the_rows_before(name: str, tmp_path: Path) -> None:
    """And the commit's own scores, and all later ones, are the same bits as without questions."""
    config = trained(tmp_path, name)
    (every,) = commits(config)
    first, second = every.slice(0, len(every) // 2), every.slice(len(every) // 2)
    asked, quiet = memory(config), memory(config)
    t = int(max(second["t"].to_pylist())) + 10**7
    answers: dict[int, Scored] = {}

    @contextmanager
    def between() -> Iterator[None]:
        assert asked.rows is not None
        answers[asked.rows] = ask(asked, (1, 2, t), (5, NEW, t))
        yield

    asked.between = between
    assert bits(asked.take(first)) == bits(quiet.take(first))
    assert len(answers) > 1
    for rows, answer in answers.items():
        cut = memory(config)
        if rows:
            cut.take(first.slice(0, rows))
        wanted = ask(cut, (1, 2, t), (5, NEW, t))
        np.testing.assert_array_equal(answer.encounters[:, 6:], wanted.encounters[:, 6:])
        if name not in (
            "two-layers",
            "by event",
        ):  # of which second hops, or all, are seen at the row's moment
            np.testing.assert_allclose(answer.score, wanted.score, rtol=2e-3, atol=2e-4)
    assert asked.rows is None
    assert bits(asked.take(second)) == bits(quiet.take(second))


def test_nodes_that_were_forgotten_are_new_ones(tmp_path: Path) -> None:
    config = trained(tmp_path, budget={"nodes": 20})
    first, *_ = commits(config)
    asked = memory(config)
    names = asked._session.names
    assert not names.are_ids
    gone = [node for node in range(60) if int(names.find(np.array([node]))[0]) < 0]
    t = int(max(first["t"].to_pylist())) + 10**8
    for src, dst in [(gone[0], gone[1]), (gone[2], NEW), (NEW + 1, gone[3]), (gone[4], gone[4])]:
        answer = ask(asked, (src, dst, t))
        assert bits(answer) == bits(asked.take(single(first, src, dst, t)))


@pytest.mark.parametrize("kind", ["int", "string"])
def test_ids_of_dense_ones(kind: Any) -> None:
    ids = ["3", "äö", "", "long" * 60] if kind == "string" else [7, -2, 2**62]
    dictionary = new_dictionary(kind)
    dictionary.extend(pa.array(ids))
    order = [len(ids) - 1, 0, 1]
    assert dictionary.of(np.array(order)).to_pylist() == [ids[place] for place in order]
    assert dictionary.of(np.array([], np.int64)).to_pylist() == []


def test_known_destinations_are_near_or_met_often(tmp_path: Path) -> None:
    config = trained(tmp_path)
    of = memory(config)
    for events in commits(config):
        of.take(events)
    met = of._history.count_in
    every, known = of.destinations(pa.array([1]), 1000, unmet=False)
    assert known == np.count_nonzero(met) and set(every.to_pylist()) == set(np.flatnonzero(met).tolist()) - {
        1
    }
    some, _ = of.destinations(pa.array([1]), 10, unmet=False)
    assert len(some) <= 10 and set(some.to_pylist()) <= set(every.to_pylist())
    assert int(np.argmax(met)) in [*some.to_pylist(), 1]
    fresh, _ = of.destinations(pa.array([1]), 1000, unmet=True)
    pairs = of._history.look(np.ones(len(fresh), np.int64), np.array(fresh.to_pylist()), 0)
    assert 0 < len(fresh) < len(every) and not pairs[:, 6].any()
    stranger, _ = of.destinations(pa.array([NEW]), 10, unmet=True)
    assert len(stranger) == 10


# -- the desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    config = trained(tmp_path_factory.mktemp("desk"))
    scorer = Scorer(config, Ranks(), NOTHING)
    assert scorer.new(lambda arrived, scored: True)
    percentiles = Percentiles(1000)
    percentiles.of(np.linspace(-5, 5, 1000).astype(np.float32))
    yield Desk(scorer, percentiles, config.model)
    scorer.close()


EVENT = {"src": 1, "dst": 2, "t": 100.0}


def test_an_answer_names_what_it_knows(desk: Desk) -> None:
    answer = desk.score({**EVENT, "event_id": "x", "weight": 2, "features": [1.5]})
    known = desk._scorer.known
    assert answer["known_commit"] == known.arrivals.done and answer["known_rows"] is None
    assert answer["known_until"] == known.memory.known_us / 1e6  # type: ignore[operator]
    assert {name: answer[name] for name in known.said} == known.said
    (one,) = answer["scores"]
    assert (one["src"], one["dst"], one["t"], one["event_id"]) == (1, 2, 100.0, "x")
    assert 0 <= one["percentile"] <= 100 and one["reasons"]["source_events"] > 0


def test_texts_of_numbers_are_ids_of_a_graph_of_numbers(desk: Desk) -> None:
    assert desk.score({**EVENT, "src": "1"})["scores"][0]["score"] == desk.score(EVENT)["scores"][0]["score"]


def test_a_ranking_is_by_score(desk: Desk) -> None:
    answer = desk.rank({"src": 1, "t": 100.0})
    scores = [one["score"] for one in answer["destinations"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 10 < answer["ranked"] <= answer["of"]
    given = desk.rank({"src": 1, "t": 100.0, "candidates": [5, 2, 10**9]})
    assert {one["dst"] for one in given["destinations"]} == {5, 2, 10**9}
    assert (given["ranked"], given["of"]) == (3, 3)
    assert len(desk.rank({"src": 1, "t": 100.0, "candidates": [5, 2], "k": 1})["destinations"]) == 1
    assert {
        one["reasons"]["pair_events"]
        for one in desk.rank({"src": 1, "t": 1, "only_new": True})["destinations"]
    } == {0}


WRONG = {
    "a number": (3, "the event must be a JSON object, found a number"),
    "nothing": ([], "the list has 0 events, and a question has 1 to 100. Ask several questions"),
    "too many": ([EVENT] * (EVENTS + 1), "the list has 101 events"),
    "a list in a list": ([EVENT, [EVENT]], "event 1 must be a JSON object, found a list"),
    "no src": ({"dst": 1, "t": 1}, "the event: key src is missing"),
    "a misspelt key": ({**EVENT, "wieght": 1}, "the event: unknown key wieght. Did you mean weight?"),
    "a text as id": (
        [EVENT, {**EVENT, "dst": "abc"}],
        "dst: ids of this graph are whole numbers, found the text 'abc'",
    ),
    "a huge id": ({**EVENT, "src": 2**63}, "src: ids are whole numbers of 64 bits, found a longer one"),
    "a truth as id": ({**EVENT, "src": True}, "the event: src: must be a whole number or text"),
    "a text as time": ({**EVENT, "t": "2026"}, "the event: t: must be a number"),
    "a time of no use": ({**EVENT, "t": 1e300}, "the event: t: must be at most 100000000000"),
    "a list as id": ({**EVENT, "src": [1]}, "the event: src: must be a whole number or text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_answered_is_said_in_a_sentence(name: str, desk: Desk) -> None:
    content, sentence = WRONG[name]
    with pytest.raises(WrongQuestionError) as refused:
        desk.score(content)
    assert sentence in str(refused.value)


def test_a_ranking_is_bounded(desk: Desk) -> None:
    asked = {"src": 1, "t": 1}
    for more, sentence in {
        "candidates": ([2] * (CANDIDATES + 1), "candidates"), "k": (0, "must be at least 1"),
    }.items():  # fmt: skip
        with pytest.raises(WrongQuestionError, match=sentence[1]):
            desk.rank({**asked, more: sentence[0]})
    with pytest.raises(WrongQuestionError, match="only_new goes without candidates"):
        desk.rank({**asked, "candidates": [1], "only_new": True})


# -- turns


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_questions_have_their_turn_within_a_commit_in_order() -> None:
    turns, order = Turns(10), list[int]()

    def question(number: int) -> None:
        with turns.question(60):
            order.append(number)

    with turns.scorer():
        threads = []
        for number in range(5):
            threads.append(started(lambda number=number: question(number)))  # type: ignore[misc]
            while len(turns._waiting) < number + 1:
                pass
        with turns.between():
            pass
        assert order == [0, 1, 2, 3, 4], "all that waited, before the scorer has the memory again"
    for thread in threads:
        thread.join(30)


def test_a_question_is_refused_if_too_many_wait_or_it_waits_for_too_long() -> None:
    turns = Turns(1)
    with turns.scorer():
        late: list[Exception] = []

        def question() -> None:
            try:
                with turns.question(0.5):
                    pass
            except LateError as error:
                late.append(error)

        waiting = started(question)
        while not turns._waiting:
            pass
        with pytest.raises(FullError, match="1 questions wait already"), turns.question(60):
            pass
        waiting.join(30)
        assert "within 0.5 s. Ask again" in str(late[0])
    with turns.question(0):
        pass
