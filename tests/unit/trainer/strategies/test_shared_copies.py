"""Parts dealt out to ranks, and copies of shared nodes that become one memory."""

import numpy as np
import pytest
import torch
from thread_ranks import side_by_side

from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.walks import SCALES_S, STEPS, WIDTH
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.speed.part_groups import PartGroups, combine
from freshet_graph.trainer.strategies.speed.sharded_stream import ShardedStream
from freshet_graph.trainer.strategies.speed.shared_copies import SharedCopies

HOUR_US = 3_600_000_000


def faded(sketch: np.ndarray | float, us: int) -> np.ndarray:
    """Walks some time later, by their definition: a walk of l steps counts exp(−l · age / scale)."""
    step = np.arange(1, STEPS + 1)[None, :, None]
    scale_us = 1e6 * np.array(SCALES_S)[:, None, None]
    return np.float64(sketch) * np.exp(-step * us / scale_us)


@pytest.mark.parametrize("how", ["latest", "mean"])
def test_copies_become_one(how: str) -> None:
    """Three ranks, nodes 0 … 3 shared and owned by ranks 0, 1, 2, 0; against a plain loop. Nodes 4 and 5 have no copies."""
    owner = np.array([0, 1, 2, 0, 1, 2], np.int32)
    others, hours_of_others = np.array([4, 5]), np.array([3, 4])
    hours = {0: [5, 7, -1, 6], 1: [9, 7, -1, 2], 2: [8, 1, -1, -1]}  # −1: no event on that rank
    times = {rank: [hour * HOUR_US if hour > 0 else -1 for hour in row] for rank, row in hours.items()}
    gain = np.random.default_rng(0).normal(size=(3, 4, len(SCALES_S), STEPS, WIDTH)).astype(np.float32)

    def merged(ranks: Ranks) -> dict[int, tuple[np.ndarray, int, int, np.ndarray]]:
        groups = PartGroups(3, ranks.rank, 3, 0)
        groups.place(owner, np.arange(6) < 4, 0)
        model = create_model("tgn", ModelShape(0, 1, 0), {"memory": 2, "walks": True})
        stream = ShardedStream(model, EventFeed(0), ranks, 1, groups)
        mailbox = stream.mailbox
        mailbox.reserve(6)
        mine = owner == ranks.rank
        own = mine[others]
        mailbox.put(
            others[own],
            torch.zeros(own.sum(), mailbox.mail.shape[1]),
            HOUR_US * hours_of_others[own],
        )
        old = np.array([0, 1])  # nodes 0 and 1 had an event at 5 before
        for node in old[mine[old]]:
            one = np.array([node])
            mailbox.put(one, torch.full((1, mailbox.mail.shape[1]), float(node)), np.array([5]))
            mailbox.walks.sketch[mailbox.rows_of(one)] = 1.0
            mailbox.walks.time_us[mailbox.rows_of(one)] = 5
        mailbox.see(old[~mine[old]], np.full((~mine[old]).sum(), 5))
        copies = SharedCopies(stream, np.arange(4), owner[:4], ranks)
        ours = np.array([node for node in range(4) if times[ranks.rank][node] >= 0])
        mailbox.put(
            ours,
            torch.tensor([[10.0 * ranks.rank + node] * mailbox.mail.shape[1] for node in ours.tolist()]),
            np.array(times[ranks.rank])[ours],
        )
        for node, row in zip(ours.tolist(), mailbox.rows_of(ours).tolist(), strict=True):
            time_us = times[ranks.rank][node]
            had = mailbox.walks.sketch[row]
            mailbox.walks.sketch[row] = faded(had, time_us - 5) + gain[ranks.rank, node]
            mailbox.walks.time_us[row] = time_us
        before = ranks.traffic.copy()
        copies.merge(how, ours, np.array([True, True, False, True]), others, own)
        assert ranks.traffic.since(before).begun == {"synchronise": 3}, "times, mails, walks"
        held = mailbox.rows(np.flatnonzero(mailbox.rows_of(np.arange(4)) >= 0))
        assert held.sketch_us.tolist() == held.event_us.tolist()
        assert owner[held.nodes].tolist() == [ranks.rank] * len(held.nodes), "copies are gone"
        assert mailbox.event_us.tolist() == [
            hour * HOUR_US if hour > 0 else -1 for hour in (9, 7, -1, 6, 3, 4)
        ]
        return {
            int(node): (
                held.mail[at].numpy(),
                int(held.event_us[at]),
                int(held.former_us[at]),
                held.sketch[at],
            )
            for at, node in enumerate(held.nodes)
        }

    found = {node: row for rank in side_by_side(3, merged) for node, row in rank.items()}
    for node in (0, 1, 3):
        had = [rank for rank in range(3) if times[rank][node] >= 0]
        latest = max(had, key=lambda rank: (times[rank][node], -rank))
        mails = [10.0 * rank + node for rank in had]
        expected = 10.0 * latest + node if how == "latest" else np.mean(mails)
        mail, event_us, former_us, sketch = found[node]
        np.testing.assert_allclose(mail, expected, rtol=1e-6)
        assert event_us == times[latest][node]
        assert former_us == (5 if node < 2 else event_us)
        parts = [faded(gain[rank, node], event_us - times[rank][node]) for rank in had]
        walks = faded(1.0 if node < 2 else 0.0, event_us - 5) + sum(parts)
        np.testing.assert_allclose(sketch, walks, atol=1e-5)
    assert 2 not in found


def test_parts_are_dealt_out_evenly_and_shuffled_alike_on_every_rank() -> None:
    assert combine(4, 4, 0, 7).tolist() == [0, 1, 2, 3]
    rounds = [combine(8, 3, 0, number).tolist() for number in range(6)]
    assert all(sorted(np.bincount(dealt)) == [2, 3, 3] for dealt in rounds)
    assert len({tuple(dealt) for dealt in rounds}) > 3
    assert combine(8, 3, 0, 2).tolist() == rounds[2]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_negatives_of_all_ranks_together_are_uniform(ranks: int) -> None:
    """A shared node is on every rank, one that is not known yet on one only."""
    draws = np.random.default_rng(4)
    home, shared = draws.integers(-1, 6, 30).astype(np.int32), draws.random(30) < 0.3
    nodes = np.array([31, 2, 5, 29, 0, 44, 12, 60, 7])
    weights = []
    for rank in range(ranks):
        groups = PartGroups(6, rank, ranks, 0)
        groups.place(home, shared, 1)
        weights.append(groups.weigh(nodes))
        here = nodes[nodes < 30]
        np.testing.assert_array_equal(weights[-1][nodes < 30] > 0, groups.is_local()[here])
    assert (np.sum(weights, axis=0) == ranks).all()
    assert ((np.array(weights) > 0).sum(axis=0)[nodes >= 30] == 1).all()
