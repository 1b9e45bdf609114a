"""Averages of ranks that learn apart: weighted by questions, with a rank's own steps kept, and told how far ranks were apart."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from thread_ranks import side_by_side

from freshet_graph.trainer.strategies.dynahb.averaging import Averager

OF_RANKS = ([1.0, 0.0], [4.0, 0.0])
"""Two weights of each rank; a moment of each is ten times as large."""


def on_two_ranks(kind: str, work: Any, every: float = 2) -> list[Any]:
    def begun(ranks: Any) -> Any:
        tables = [torch.tensor(OF_RANKS[ranks.rank]), 10 * torch.tensor(OF_RANKS[ranks.rank])]
        learner: Any = SimpleNamespace(tables=lambda: tables, num_weights=1)
        return work(ranks.rank, Averager(learner, ranks, kind, every), tables)

    return side_by_side(2, begun)


def test_a_rank_counts_by_the_questions_it_learned_since_the_last_average() -> None:
    def work(rank: int, averager: Averager, tables: list[torch.Tensor]) -> list[Any]:
        assert [averager.stepped(20), averager.stepped(10 if rank else 70)] == [False, True]
        averager.average(last=False)
        first = [table.clone() for table in tables]
        tables[0] += rank
        averager.stepped(5)
        averager.average(last=True)
        return [*first, tables[0].clone(), averager.since_last()]

    for mean, moment, then, (count, divergence) in on_two_ranks("every_steps", work):
        torch.testing.assert_close(mean, torch.tensor([1.75, 0.0]))  # 3 : 1
        torch.testing.assert_close(moment, torch.tensor([17.5, 0.0]))
        torch.testing.assert_close(then, torch.tensor([2.25, 0.5]))  # alike, what came before forgotten
        assert count == 2
        assert divergence in (pytest.approx(0.75 / 1.75), pytest.approx(2.25 / 1.75))


def test_ranks_that_learned_nothing_are_averaged_alike() -> None:
    def work(rank: int, averager: Averager, tables: list[torch.Tensor]) -> Any:
        averager.stepped(0)
        averager.average(last=True)
        return tables[0].clone()

    for mean in on_two_ranks("every_steps", work):
        torch.testing.assert_close(mean, torch.tensor([2.5, 0.0]))


def test_steps_that_are_taken_while_a_mean_travels_are_added_to_it() -> None:
    def work(rank: int, averager: Averager, tables: list[torch.Tensor]) -> list[Any]:
        averager.stepped(10)
        averager.average(last=False)
        assert tables[0].tolist() == OF_RANKS[rank], "still under way"
        tables[0] += torch.tensor([0.0, 1.0 + rank])
        averager.stepped(10)
        averager.average(last=False)
        own = tables[0].clone()
        averager.average(last=True)
        return [own, tables[0].clone(), averager.since_last()[0]]

    for rank, (own, last, count) in enumerate(on_two_ranks("delayed", work)):
        torch.testing.assert_close(own, torch.tensor([2.5, 1.0 + rank]))
        torch.testing.assert_close(last, torch.tensor([2.5, 1.5]))
        assert count == 3
