"""Overlap and waiting by a virtual clock: what is computed meanwhile hides what crosses ranks, to the second."""

from typing import Any

import pytest
import torch
from charged import Charged
from thread_ranks import FakeLink, ThreadRanks, side_by_side
from torch import Tensor

SLOW = FakeLink(latency_s=1.0, bytes_per_s=8.0)
"""A row of four float32 to the other rank: 1 + 16 / 8 = 3 seconds."""
ROW_S, HALF = 3.0, [1, 1]


def two_rows() -> Tensor:
    return torch.ones(2, 4, requires_grad=True)


def test_a_collective_takes_latency_and_bytes_after_the_last_rank_has_come() -> None:
    def work(ranks: ThreadRanks) -> Any:
        ranks.compute(5.0 if ranks.rank else 2.0)
        ranks.exchange(two_rows(), HALF, HALF, "rows")
        return ranks.now_s, ranks.traffic.seconds

    assert side_by_side(2, work, SLOW) == [(8.0, {"rows": 6.0}), (8.0, {"rows": 3.0})]


def test_the_slowest_line_is_waited_for_and_the_collective_before() -> None:
    def work(ranks: ThreadRanks) -> Any:
        rows = [3, 0] if ranks.rank else [0, 1]
        first = ranks.begin_exchange(
            torch.ones(sum(rows), 4), rows, [0, 3] if not ranks.rank else [1, 0], "first"
        )
        second = ranks.begin_exchange(two_rows().detach(), HALF, HALF, "second")
        first.wait()
        at_first = ranks.now_s
        second.wait()
        return at_first, ranks.now_s

    assert side_by_side(2, work, SLOW) == [(7.0, 10.0)] * 2  # 1 + 3 · 16 / 8, and 3 more


@pytest.mark.parametrize(("compute_s", "exposed_s"), [(0.0, 3.0), (1.0, 2.0), (3.0, 0.0), (9.0, 0.0)])
def test_computing_hides_the_way_there_and_its_backward_pass_the_way_back(
    compute_s: float, exposed_s: float
) -> None:
    def work(ranks: ThreadRanks) -> Any:
        rows, beside = two_rows(), torch.ones(1, requires_grad=True)
        handle = ranks.begin_exchange(rows, HALF, HALF, "rows")
        computed = Charged.apply(beside, ranks, compute_s)
        (handle.wait().sum() * 7 + computed.sum()).backward()
        assert rows.grad.tolist() == [[7.0] * 4] * 2
        assert ranks.now_s == 3 * compute_s + ranks.traffic.wait_s
        return ranks.traffic.seconds

    back_s = max(0.0, ROW_S - 2 * compute_s)
    assert side_by_side(2, work, SLOW) == [{"rows": exposed_s, "rows_gradients": back_s}] * 2


SNAPSHOTS, LAYER_S = 6, 3.0


def layers(ranks: ThreadRanks, *, overlapped: bool) -> tuple[float, float, Tensor]:
    """A layer over each snapshot, whose rows then go to the other rank; seconds in all, and exposed."""
    weight = torch.full((4, 4), 0.5, requires_grad=True)
    handles = []
    for number in range(SNAPSHOTS):
        rows = Charged.apply(torch.full((2, 4), float(number)) @ weight, ranks, LAYER_S)
        handles.append(ranks.begin_exchange(rows, HALF, HALF, "rows"))
        if not overlapped:
            handles[-1].wait()
    loss = sum((handle.wait() * (number + ranks.rank)).sum() for number, handle in enumerate(handles))
    loss.backward()
    return ranks.now_s, ranks.traffic.wait_s, weight.grad


def test_a_pipeline_over_snapshots_exposes_less_than_the_serial_schedule_and_learns_the_same() -> None:
    serial = side_by_side(2, lambda ranks: layers(ranks, overlapped=False), SLOW)
    overlapped = side_by_side(2, lambda ranks: layers(ranks, overlapped=True), SLOW)
    compute_s = SNAPSHOTS * LAYER_S * 3  # there, and twice as long back
    for (together_s, exposed_s, gradient), (serial_s, waited_s, expected) in zip(
        overlapped, serial, strict=True
    ):
        # Serially all rows are waited for, both ways; in a pipeline only the last ones there and the first ones back.
        assert (serial_s, waited_s) == (compute_s + 2 * SNAPSHOTS * ROW_S, 2 * SNAPSHOTS * ROW_S)
        assert (together_s, exposed_s) == (compute_s + 2 * ROW_S, 2 * ROW_S)
        assert exposed_s <= 0.35 * waited_s
        assert torch.equal(gradient, expected)


def test_who_computes_longer_is_waited_for_and_waits_itself_for_nobody() -> None:
    """The sum of all ranks' waiting tells imbalance; the slowest pays the network only."""

    def work(ranks: ThreadRanks) -> Any:
        for step in range(3):
            ranks.compute(10.0 if ranks.rank == step % 2 else 4.0)
            ranks.sum_rows(torch.ones(4), "gradients")
        return ranks.now_s, ranks.traffic.seconds["gradients"]

    assert side_by_side(2, work, SLOW) == [(39.0, 15.0), (39.0, 21.0)]
