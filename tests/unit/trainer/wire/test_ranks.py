"""The collectives of ``Ranks`` beside plain arithmetic: results, gradients, bytes, seconds, devices."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from every_collective import WIDTH, drawn, every_collective, parameters, plain, plan
from thread_ranks import FakeLink, ThreadLink, ThreadRanks, side_by_side
from torch import Tensor

from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.wire import joining
from freshet_graph.trainer.wire.link import Link, ProcessLink

SIZES = [1, 2, 3, 4]
SLOW = FakeLink(latency_s=1.0, bytes_per_s=8.0)


def on_ranks(size: int, work: Any) -> list[Any]:
    """One rank is alone, as it is without a launcher."""
    return [work(Ranks())] if size == 1 else side_by_side(size, work)


def public(of: type) -> dict[str, list[str]]:
    """Public methods and their arguments."""
    return {
        name: list(inspect.signature(each).parameters)
        for name, each in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("size", SIZES)
def test_results_and_gradients_are_those_of_plain_arithmetic(size: int) -> None:
    everyones = on_ranks(size, every_collective)
    sent = plan(size)
    assert everyones[0].keys() == public(Ranks).keys() - {"close"}
    starts = np.concatenate([np.zeros((size, 1), int), sent.cumsum(axis=1)], axis=1)
    rows = [drawn(rank, int(sent[rank].sum()), WIDTH) for rank in range(size)]
    few = torch.cat([drawn(rank, rank, WIDTH) for rank in range(size)])
    shares = [1.0 + rank for rank in range(size)]
    for rank, found in enumerate(everyones):
        arrived = torch.cat([rows[of][starts[of, rank] : starts[of, rank + 1]] for of in range(size)])
        assert torch.equal(found["begin_exchange"], arrived)
        assert torch.equal(found["exchange"][0], arrived)
        torch.testing.assert_close(
            found["exchange"][1], 2 * rows[rank] + 2
        )  # of squares, and of twice the later
        assert torch.equal(found["exchange_tables"][0], arrived)
        assert found["exchange_tables"][1].tolist() == found["exchange_array"]
        assert torch.equal(found["gather_rows"][0], few)
        torch.testing.assert_close(found["gather_rows"][1], size * 3 * drawn(rank, rank, WIDTH) ** 2)
        both, first, nowhere, loss = found["sum_gradients"]
        assert loss.item() == sum(of + 0.25 for of in range(size))
        torch.testing.assert_close(both, torch.stack([drawn(of, 2, 3) for of in range(size)]).sum(dim=0))
        assert torch.equal(first, drawn(7, 4))
        assert nowhere is None, "as on one rank, where the optimiser leaves such a weight alone"
        ordered = [drawn(number, 3) for number in range(6)]
        assert torch.equal(found["sum_in_order"][0], sum(ordered[1:], start=ordered[0]))
        torch.testing.assert_close(found["sum_rows"], sum(drawn(of, 4) for of in range(size)))
        torch.testing.assert_close(found["average"][0], sum(drawn(of, 2) for of in range(size)) / size)
        weighed = sum(share * drawn(of, 3) for of, share in enumerate(shares)) / sum(shares)
        torch.testing.assert_close(found["begin_average"][0], weighed)
        assert plain({name: found[name] for name in NUMBERS}) == {
            "any": [True, False],
            "maximum": [size - 1, 0],
            "total": [size * size / 2],
            "from_first": 7,
            "text_from_first": "rank 0 über",
            "bytes_from_first": "0007",
            "unlike_first": ", ".join(str(of) for of in range(1, size, 2)),
            "on_first": None if rank else 5,
            "gather_numbers": [[of, -of] for of in range(size)],
            "exchange_blocks": [found["exchange_array"], sent[:, rank].tolist()],
            "gather_blocks": [each for of in range(size) for each in range(of)],
            "exchange_array": [int(at) for of in range(size) for at in range(starts[of, rank], starts[of, rank + 1])],
            "sum_array": [size * (size - 1) // 2, size],
            "largest": [size - 1, 0],
            "union": sorted({*range(size), 3}),
            "split": [[float(size)], [1.0], rank, 0],
        }  # fmt: skip


NUMBERS = (
    "any", "maximum", "total", "from_first", "text_from_first", "bytes_from_first", "unlike_first",
    "on_first", "exchange_array", "sum_array",
    "largest", "union", "split", "gather_numbers", "exchange_blocks", "gather_blocks",
)  # fmt: skip


@pytest.mark.parametrize("to", [None, 0])
@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_unknown_sizes_arrive_whole_and_cross_at_once_while_they_do_not_grow(
    size: int, to: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshet_graph.trainer.ranks.MOST_AHEAD", 40)
    monkeypatch.setattr("freshet_graph.trainer.ranks.MOST_TO_ONE", 125)
    largest = [8, 10, 4, 0, 30, 33, 100, 100, 126]  # of any block between two ranks
    draws = np.random.default_rng(size)
    plans = [draws.integers(0, most + 1, (size, size)) for most in largest]
    for sent, most in zip(plans, largest, strict=True):
        sent[size - 1, 0] = most
        np.fill_diagonal(sent, 50)  # what stays on a rank needs no room
        if to is not None:
            sent[:, 1:] = 0

    def work(ranks: Ranks) -> Any:
        found, crossed = [], []
        for number, sent in enumerate(plans):
            before = ranks.traffic.copy()
            own = sent[ranks.rank]
            values = 1000 * number + 100 * ranks.rank + np.arange(own.sum())
            found.append(ranks.exchange_blocks(values, own.tolist(), "blocks", to=to))
            crossed.append(ranks.traffic.since(before).begun["blocks"])
        return found, crossed

    for rank, (found, crossed) in enumerate(on_ranks(size, work)):
        for number, (sent, (values, counts)) in enumerate(zip(plans, found, strict=True)):
            assert counts == sent[:, rank].tolist()
            starts = sent.cumsum(axis=1) - sent
            wanted = [
                1000 * number + 100 * of + starts[of, rank] + np.arange(sent[of, rank]) for of in range(size)
            ]
            assert values.tolist() == np.concatenate(wanted).tolist()
        # room: 0, 10, 12, 10, 8, 37, 41 or 40, 125 or 40, 125 or 40
        wanted = [2, 1, 1, 1, 2, 1, 2, 2 if to is None else 1, 2]
        assert crossed == ([0] * len(largest) if size == 1 else wanted)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_collective_and_every_second_of_it_is_counted(size: int) -> None:
    """By a link's own records: nothing crosses it, and nobody waits at it, without a purpose."""

    def work(ranks: ThreadRanks) -> Any:
        every_collective(ranks)
        assert ranks.traffic.wait_s == pytest.approx(ranks.now_s, rel=1e-12)
        assert ranks.now_s > 20
        assert ranks.traffic.begun.total() == len(ranks.thread_link.seen)
        return ranks.traffic

    everyones = side_by_side(size, work, SLOW)
    for traffic in everyones:
        assert traffic.begun == everyones[0].begun
        assert traffic.seconds.keys() == traffic.sent_bytes.keys() == traffic.begun.keys()
        assert traffic.sent_bytes["control"] > 0
        assert traffic.seconds["control"] >= traffic.begun["control"] * SLOW.latency_s
    sent = plan(size)
    for rank, traffic in enumerate(everyones):
        to_others = 8 * WIDTH * (sent[rank].sum() - sent[rank, rank])
        from_others = 8 * WIDTH * (sent[:, rank].sum() - sent[rank, rank])
        assert traffic.sent_bytes["rows"] == traffic.sent_bytes["begun"] == to_others
        assert traffic.sent_bytes["rows_gradients"] == traffic.sent_bytes["begun_gradients"] == from_others
        assert traffic.sent_bytes["gathered"] == 8 * WIDTH * rank * (size - 1)
        assert traffic.sent_bytes["gathered_gradients"] == 8 * WIDTH * (sum(range(size)) - rank)
        gradients, which_exist, loss = 11, 3, 1
        assert (
            traffic.sent_bytes["gradients"] == 2 * (size - 1) * 8 * (gradients + which_exist + loss) // size
        )
        assert traffic.begun["gradients"] == 1


def test_an_earlier_count_taken_off_leaves_purposes_that_something_crossed_for() -> None:
    """Also where this rank sent nothing: all ranks list the same purposes, and add up the same table."""

    def work(ranks: Ranks) -> Any:
        ranks.sum_rows(torch.ones(2), "before")
        before = ranks.traffic.copy()
        ranks.from_first(3, "after")
        return ranks.traffic.since(before)

    first, second = side_by_side(2, work)
    assert (first.begun, second.begun) == ({"after": 1}, {"after": 1})
    assert (first.sent_bytes, second.sent_bytes) == ({"after": 8}, {"after": 0})
    assert first.seconds.keys() == second.seconds.keys() == {"after"}


def test_numbers_that_the_host_decides_by_stay_on_the_host() -> None:
    """On ranks whose weights are elsewhere; the link would tell of any tensor that came from there."""

    def work(ranks: ThreadRanks) -> Any:
        assert ranks.device.type == "meta"
        ranks.any(True, False)
        ranks.maximum([1])
        ranks.total([1.0])
        ranks.from_first(1)
        ranks.text_from_first("text")
        ranks.gather_numbers([1])
        ranks.exchange_blocks(np.arange(3), [1, 2], "blocks")
        ranks.exchange_array(np.arange(3), [1, 2], [ranks.rank + 1] * 2, "rows")
        ranks.union(np.arange(2))
        ranks.largest(np.arange(2), "largest")
        ranks.sum_array(np.arange(2), "summed")
        ranks.split(1, 2)[0].total([1.0])
        decided = list(ranks.thread_link.seen)
        weights = [torch.nn.Parameter(torch.zeros(2, device=ranks.device)) for _ in range(2)]
        weights[0].grad = torch.zeros(2, device=ranks.device)
        ranks.sum_gradients(weights, torch.zeros((), device=ranks.device))
        return decided, ranks.thread_link.seen[len(decided) :]

    for decided, summed in side_by_side(2, work, device="meta"):
        assert set(decided) == {"cpu"}
        assert len(decided) == 15
        assert summed == ["cpu", "meta"], (
            "who has a gradient is a number of the host's, the gradients are not"
        )


def test_on_gpus_the_host_has_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: begun.append((backend, more)))
    monkeypatch.setattr(joining, "TCPStore", lambda *_, **__: dist.HashStore())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    threads = torch.get_num_threads()
    for key, value in {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.setenv("LOCAL_RANK", "1")
    try:
        ranks = Ranks.from_environment("auto", timeout_s=5.0)
    finally:
        torch.set_num_threads(threads)
    assert (ranks.rank, ranks.size, str(ranks.device)) == (1, 2, "cuda:1")
    ((backend, more),) = begun
    assert backend == "cpu:gloo,cuda:nccl"
    assert more["timeout"].total_seconds() == 5.0


def test_doubles_have_the_interface_of_what_they_stand_for() -> None:
    for link in (ProcessLink, ThreadLink):
        assert public(link) == public(Link)
    assert public(ThreadRanks) == {**public(Ranks), "compute": ["self", "seconds"]}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_gradients_of_all_ranks_come_back_through_exchanges_that_are_awaited_in_another_order(
    size: int,
) -> None:
    """As if one rank had all of it: every rank embeds its rows by the same weight and loses by everyone's."""
    weight = drawn(99, WIDTH, WIDTH)
    sent = plan(size)
    own = [drawn(rank, int(sent[rank].sum()), WIDTH) for rank in range(size)]

    def embedded(rank: int, shared: Tensor) -> Tensor:
        return torch.tanh(own[rank] @ shared)

    def work(ranks: Ranks) -> Tensor:
        shared = weight.clone().requires_grad_()
        rows = embedded(ranks.rank, shared)
        there = (sent[ranks.rank].tolist(), sent[:, ranks.rank].tolist())
        first = ranks.begin_exchange(rows, *there, "first")
        second = ranks.begin_exchange(rows.square(), *there, "second")
        everyones = ranks.gather_rows(rows, sent.sum(axis=1).tolist(), "gathered")
        second.wait()  # not in the order of their beginning, but in one order on all ranks
        mixed = first.wait() * second.wait() * (ranks.rank + 1)
        (mixed.sum() + (everyones * everyones.sin()).sum() * (ranks.rank + 2)).backward()
        return ranks.sum_rows(shared.grad, "gradients")

    shared = weight.clone().requires_grad_()
    starts = np.concatenate([np.zeros((size, 1), int), sent.cumsum(axis=1)], axis=1)
    rows = [embedded(rank, shared) for rank in range(size)]
    everyones = torch.cat(rows)
    loss = torch.zeros(()).double()
    for rank in range(size):
        arrived = torch.cat([rows[of][starts[of, rank] : starts[of, rank + 1]] for of in range(size)])
        loss = loss + (arrived * arrived.square()).sum() * (rank + 1)
        loss = loss + (everyones * everyones.sin()).sum() * (rank + 2)
    loss.backward()
    for found in side_by_side(size, work):
        torch.testing.assert_close(found, shared.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (1, 4), (4, 1), (2, 3)])
def test_a_mesh_has_rows_and_columns_with_gradients_and_costs_of_their_own(rows: int, columns: int) -> None:
    def work(ranks: ThreadRanks) -> Any:
        row, column = ranks.split(rows, columns)
        assert (row.size, column.size) == (columns, rows)
        assert (row.rank, column.rank) == (ranks.rank % columns, ranks.rank // columns)
        own = torch.tensor([[float(ranks.rank)]], requires_grad=True)
        beside = row.gather_rows(own, [1] * columns, "beside")
        below = column.gather_rows(own, [1] * rows, "below")
        (beside.sum() + 10 * below.sum()).backward()
        seconds = ranks.traffic.wait_s
        assert seconds == pytest.approx(ranks.now_s), "both share this rank's clock and its count"
        return (
            beside.flatten().tolist(),
            below.flatten().tolist(),
            own.grad.item(),
            ranks.traffic.begun.keys(),
        )

    for rank, (beside, below, gradient, purposes) in enumerate(side_by_side(rows * columns, work, SLOW)):
        first = rank // columns * columns
        assert beside == [float(first + at) for at in range(columns)]
        assert below == [float(rank % columns + at * columns) for at in range(rows)]
        assert gradient == columns + 10 * rows
        assert ("beside" in purposes, "below" in purposes) == (columns > 1, rows > 1)


def test_a_mesh_that_has_not_as_many_places_as_there_are_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="2 × 2 ranks are not 1"):
        Ranks().split(2, 2)


CONTRIBUTIONS = 11


def contribution(number: int) -> list[Tensor]:
    """Of sizes so unlike that float32 sums depend on their order."""
    draws = np.random.default_rng(number)
    return [
        torch.from_numpy((draws.normal(size=shape) * 10.0 ** draws.integers(-4, 5, shape)).astype(np.float32))
        for shape in ((7,), (2, 3))
    ]


def dealt(size: int, seed: int) -> list[list[int]]:
    """Numbers of each rank, in some order; the last of several ranks has none."""
    draws = np.random.default_rng(seed)
    owner = draws.integers(0, max(1, size - 1), CONTRIBUTIONS)
    return [draws.permutation(np.flatnonzero(owner == rank)).tolist() for rank in range(size)]


def ordered(size: int, seed: int) -> list[Any]:
    hands = dealt(size, seed)

    def work(ranks: Ranks) -> Any:
        blocks = {number: contribution(number) for number in hands[ranks.rank]}
        return ranks.sum_in_order(blocks, contribution(0), "ordered"), ranks.traffic

    return on_ranks(size, work)


def test_sums_in_order_are_bit_equal_whoever_has_the_contributions_and_however_many_ranks_there_are() -> None:
    one, numbers = ordered(1, 0)[0][0], range(CONTRIBUTIONS)
    backwards = [
        sum(parts) for parts in zip(*(contribution(number) for number in reversed(numbers)), strict=True)
    ]
    assert not all(torch.equal(a, b) for a, b in zip(one, backwards, strict=True)), "the order matters here"
    exact = [sum(part.double() for part in parts) for parts in zip(*map(contribution, numbers), strict=True)]
    for ours, wanted in zip(one, exact, strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-2)
    for size in SIZES:
        for seed in range(4):
            for found, _ in ordered(size, seed):
                assert all(torch.equal(a, b) for a, b in zip(one, found, strict=True)), (size, seed)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_in_order_cost_what_they_say(size: int) -> None:
    """(c + 1) · n · (P − 1) / P elements, n rounded up to a multiple of P."""
    share = -(-13 // size)
    for rank, (_, traffic) in enumerate(ordered(size, 1)):
        contributions = len(dealt(size, 1)[rank])
        assert traffic.sent_bytes["ordered"] == 4 * (contributions + 1) * share * (size - 1)


def test_sums_in_order_of_nothing_are_zeros_and_a_number_that_two_ranks_have_is_refused_by_all() -> None:
    def nothing(ranks: Ranks) -> Any:
        return ranks.sum_in_order({}, contribution(0), "ordered")

    def twice(ranks: Ranks) -> Any:
        with pytest.raises(ValueError, match=r"a number is on two ranks: \[4, 4\]"):
            ranks.sum_in_order({4: contribution(4)}, contribution(0), "ordered")

    for size in (1, 3):
        for found in on_ranks(size, nothing):
            assert [part.tolist() for part in found] == [[0.0] * 7, [[0.0] * 3] * 2]
    side_by_side(2, twice)


def test_summed_gradients_are_views_of_one_buffer_that_serves_every_step() -> None:
    def work(ranks: Ranks) -> None:
        made = parameters(ranks.rank)
        places = []
        for _ in range(3):
            ranks.sum_gradients(made)
            places.append([each.grad.data_ptr() for each in made[:2]])
            assert made[0].grad.untyped_storage().data_ptr() == made[1].grad.untyped_storage().data_ptr()
            before = made[0].grad.clone()
            ranks.sum_gradients(made)  # already there: they are summed again where they are
            torch.testing.assert_close(made[0].grad, before * 2)
            for each in made:
                each.grad = None
            made[0].grad, made[1].grad = drawn(1, 2, 3), drawn(2, 4)
        assert places[0] == places[1] == places[2]

    side_by_side(2, work)


def test_an_average_that_is_under_way_is_of_the_tables_as_they_were_and_the_only_one() -> None:
    def work(ranks: ThreadRanks) -> Any:
        table = torch.full((2,), float(ranks.rank))
        handle = ranks.begin_average([table])
        table += 100
        ranks.compute(50.0)
        with pytest.raises(RuntimeError, match="an average is under way: wait for it"):
            ranks.begin_average([table])
        (mean,) = handle.wait()
        assert mean.tolist() == [0.5, 0.5]
        assert table.tolist() == [100.0 + ranks.rank] * 2
        assert ranks.traffic.seconds["averages"] == 0.0, "hidden behind the computation"
        ranks.average([table])
        return table.tolist()

    assert side_by_side(2, work, SLOW) == [[100.5, 100.5]] * 2
