"""Requests for rows of other ranks, and rows of several tables that cross as one."""

from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import side_by_side

from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.request import Request
from freshet_graph.trainer.wire.exchange import packed, unpacked


def wants(size: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Keys of each rank and their owners; some have none, and the last rank wants nothing."""
    draws = np.random.default_rng(size)
    owner = draws.integers(-1, size, 40).astype(np.int32)
    keys = [np.sort(draws.choice(40, 15 if rank < size - 1 else 0, replace=False)) for rank in range(size)]
    return keys, [owner[each] for each in keys]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_keys_that_all_ranks_know_are_answered_without_being_sent(size: int) -> None:
    keys, homes = wants(size)

    def work(ranks: Ranks) -> Any:
        own = ranks.rank
        sent = Request(keys[own], homes[own], ranks)
        before = ranks.traffic.copy()
        known = Request.of_known(keys, homes, ranks)
        assert not ranks.traffic.since(before).begun
        assert known.requested.tolist() == sent.requested.tolist()
        return [
            [each.tolist() for each in of.answer_tables(answers(of.requested), "rows")]
            for of in (sent, known)
        ]

    def answers(asked: np.ndarray) -> list[torch.Tensor]:
        rows = torch.from_numpy(asked).unsqueeze(1)
        return [rows * torch.tensor([1.5, -1.0]), rows.squeeze(1) + 7]

    for rank, (sent, known) in enumerate([work(Ranks())] if size == 1 else side_by_side(size, work)):
        there = homes[rank] >= 0
        if size > 1 or there.all():
            assert known[0] == [
                [1.5 * key, -key] if has else [0.0, 0.0] for key, has in zip(keys[rank], there, strict=True)
            ]
            assert known[1] == [key + 7 if has else 0 for key, has in zip(keys[rank], there, strict=True)]
        assert sent == known


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_tables_of_any_types_and_strides_come_back_from_bytes(rows: int) -> None:
    whole = torch.arange(60, dtype=torch.float64).view(5, 12)
    tables = [
        torch.arange(rows, dtype=torch.int64),
        whole[:rows, ::5],
        torch.full((rows, 2, 3), -0.5),
        torch.ones(rows, 0),
        torch.arange(2 * rows, dtype=torch.int32).view(rows, 2)[:, 1:],
    ]
    box = packed(tables)
    assert box.dtype == torch.uint8
    assert box.shape == (rows, 8 + 24 + 24 + 0 + 4)
    for found, table in zip(unpacked(box, tables), tables, strict=True):
        assert found.dtype == table.dtype
        assert torch.equal(found, table)
    for found, table in zip(unpacked(box[:1], tables), tables, strict=True):
        assert torch.equal(found, table[:1])
