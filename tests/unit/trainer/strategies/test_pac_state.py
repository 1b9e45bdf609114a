"""What ranks of ``pac`` keep: state that goes on with other ranks, what is forgotten, what is refused."""

from pathlib import Path

import numpy as np
import pytest
from pac_rank import STILL, Rank, make_store, scores_of
from thread_ranks import side_by_side
from trainer_sessions import learn, session_on

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.interface import STRATEGIES
from freshet_graph.trainer.strategies.speed.pac import PacStrategy
from freshet_graph.trainer.strategies.speed.part_groups import PartGroups


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("pac"))


def test_a_gathered_state_goes_on_with_another_number_of_ranks(store: Path) -> None:
    def first(ranks: Ranks) -> dict:
        rank = Rank(store, ranks, "tgn-history", "pac", STILL)
        for sequence in range(3):
            learn(rank.session, rank.examples(sequence), 0)
        return rank.session.state()

    state = side_by_side(3, first)[0]

    def second(ranks: Ranks) -> np.ndarray:
        rank = Rank(store, ranks, "tgn-history", "pac", STILL)
        rank.session.restore(state)
        return scores_of(rank, 3)

    one, two = second(Ranks()), side_by_side(2, second)[0]
    np.testing.assert_allclose(two, one, atol=1e-6)


def test_several_ranks_forget_what_one_forgets(store: Path) -> None:
    def predicted(ranks: Ranks) -> list[np.ndarray]:
        rank = Rank(store, ranks, "tgn-history", "pac" if ranks.size > 1 else "sequential", STILL)
        names, found = rank.session.names, []
        for sequence in range(4):
            found.append(scores_of(rank, sequence))
            if sequence in (1, 2):
                kept = np.flatnonzero(np.arange(len(names)) % 5 != 3)
                oldest_us = int(rank.strategy.event_times[20])
                rank.strategy.forget(kept, 20)
                rank.session.task.history.forget(kept, oldest_us)
                names.keep(kept)
        assert rank.strategy.owned(len(names)).any()
        return found

    alone = predicted(Ranks())
    for together in (side_by_side(2, predicted)[0], side_by_side(3, predicted)[0]):
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_owners_stay_when_nodes_are_forgotten_and_others_come() -> None:
    groups = PartGroups(5, 0, 3, 0)
    groups.place(np.array([4, -1, 2, -1, -1, 0], np.int32), np.zeros(6, np.bool_), 1)
    kept = np.array([1, 2, 4, 5])
    before = groups.owner[kept].tolist()
    groups.keep(kept)
    groups.grow(6)
    assert groups.owner[:4].tolist() == before


@pytest.mark.parametrize(("every", "combinations"), [(1, 6), (2, 4), (None, 1)])
def test_parts_are_combined_again_and_again_or_once(
    store: Path, every: int | None, combinations: int
) -> None:
    """Over three snapshots and two passes, as in SPEED's Fig. 7."""
    rank, rounds = Rank(store, Ranks(), "tgn", "pac", STILL, shuffle_every=every), set()
    for _ in range(2):
        rank.session.rewind()
        for sequence in range(3):
            rank.examples(sequence)
            rounds.add(rank.strategy._groups.round_number)
    assert len(rounds) == combinations


def test_rows_held_fall_with_ranks_and_copies_are_given_back(store: Path) -> None:
    def held(ranks: Ranks) -> list[int]:
        rank = Rank(store, ranks, "tgn", "pac", STILL)
        for sequence in range(2):
            learn(rank.session, rank.examples(sequence), 0)
        mailbox = rank.strategy.memories.trained.stream.mailbox
        nodes = mailbox.places.nodes()
        assert rank.strategy.owned(40)[nodes].all()
        return nodes.tolist()

    (one,) = [held(Ranks())]
    two = side_by_side(2, held)
    assert sorted(two[0] + two[1]) == one
    assert max(len(part) for part in two) < 0.8 * len(one)


def test_what_it_cannot_do_is_said_in_a_sentence(store: Path) -> None:
    lane = LaneReader(store, "sep")
    with pytest.raises(Failure, match=r"lane sep has 5 parts for 6 ranks\. Start at most 5 ranks"):
        session_on(lane, "pac", "tgn", Ranks(0, 6), STILL)
    with pytest.raises(
        Failure, match="strategy_params of pac: synchronise: must be 'latest' or 'mean', found 'first'"
    ):
        STRATEGIES.options("pac", {"synchronise": "first"})
    with pytest.raises(Failure, match="strategy_params of pac: shuffle_every: must be at least 1, found 0"):
        STRATEGIES.options("pac", {"shuffle_every": 0})
    with pytest.raises(Failure, match="batch: must be 'divided' or 'each', found 'half'"):
        STRATEGIES.options("pac", {"batch": "half"})
    with pytest.raises(
        Failure, match="strategy pac trains event models, and sage-linear is among the snapshot models"
    ):
        session_on(lane, "pac", "sage-linear")
    assert STRATEGIES.find("pac") is PacStrategy
