"""The one step: several ranks beside one, what all leave out, and averages beside plain arithmetic."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from thread_ranks import side_by_side
from torch import Tensor, nn

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.trainer.learning.step import Learner
from freshet_graph.trainer.ranks import Ranks

OPTIMISATION = Optimisation(learning_rate=0.05, grad_clip=0.5, weight_decay=0.01)
BATCHES, ROWS, WIDTH = 4, 6, 3


FRESH = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def model() -> nn.Module:
    """The same weights in every thread."""
    return copy.deepcopy(FRESH)


def data() -> Tensor:
    return torch.randn(BATCHES, ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).double()


def loss_of(net: nn.Module, rows: Tensor) -> Tensor:
    return (net(rows).squeeze(1) - rows.sum(dim=1)).square().sum()


def weights(net: nn.Module) -> list[Tensor]:
    return [each.detach().clone() for each in net.parameters()]


def moments(learner: Learner) -> list[Tensor]:
    state = learner.rate.optimiser.state
    return [state[each][name].clone() for each in learner._weights for name in ("exp_avg", "exp_avg_sq")]


@pytest.mark.parametrize("size", [2, 3])
def test_steps_of_several_ranks_are_those_of_one_over_all_their_rows(size: int) -> None:
    """The ranks have unequally many rows, the last one none at all in the second step."""
    rows = data()

    def work(ranks: Ranks) -> Any:
        net = model()
        learner = Learner(net, OPTIMISATION, ranks)
        for number, batch in enumerate(rows):
            mine = [at for at in range(ROWS) if (0 if at < 2 else at % size) == ranks.rank]
            nothing = number == 1 and ranks.rank == size - 1
            learner.step(None if nothing else loss_of(net, batch[mine]), 1 / ROWS)
        return weights(net), moments(learner), learner.settled(), learner.seconds()

    found = side_by_side(size, work)
    net = model()
    one = Learner(net, OPTIMISATION, Ranks())
    for number, batch in enumerate(rows):
        theirs = [at for at in range(ROWS) if number != 1 or (0 if at < 2 else at % size) != size - 1]
        one.step(loss_of(net, batch[theirs]), 1 / ROWS)
    losses = [loss for loss, _ in one.settled()]
    for each, momentum, outcomes, seconds in found:
        assert [loss for loss, _ in outcomes] == pytest.approx(losses), "also on the one that had nothing"
        torch.testing.assert_close(each, weights(net), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(momentum, moments(one), rtol=1e-9, atol=1e-12)
        assert all(torch.equal(a, b) for a, b in zip(each, found[0][0], strict=True))
        assert [left_out for _, left_out in outcomes] == [False] * BATCHES
        assert set(seconds) == {"backward", "synchronise", "update"}
        assert all(second > 0 for second in seconds.values())


@pytest.mark.parametrize(
    "spoilt",
    [lambda loss: loss * torch.nan, lambda loss: loss * torch.inf, lambda loss: loss + torch.inf],
    ids=["nan", "infinite", "infinite with a finite gradient"],
)
def test_a_step_that_is_not_finite_on_one_rank_is_left_out_on_all(
    spoilt: Callable[[Tensor], Tensor],
) -> None:
    rows = data()

    def work(ranks: Ranks) -> Any:
        net = model()
        learner = Learner(net, OPTIMISATION, ranks)
        kept = []
        for number, batch in enumerate(rows):
            loss = loss_of(net, batch)
            learner.step(spoilt(loss) if number == 2 and ranks.rank == 1 else loss, 1.0)
            kept.append(weights(net))
        return kept, [left_out for _, left_out in learner.settled()]

    for kept, left_out in side_by_side(2, work):
        assert left_out == [False, False, True, False]
        assert all(torch.equal(a, b) for a, b in zip(kept[1], kept[2], strict=True))
        assert not torch.equal(kept[2][0], kept[3][0])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_averages_of_weights_and_moments_are_plain_means(every: int) -> None:
    rows = data()

    def work(ranks: Ranks) -> Any:
        net = model()
        learner = Learner(net, OPTIMISATION, ranks, averages_every=every)
        history = []
        for batch in rows:
            learner.step(loss_of(net, batch[ranks.rank :: 2]), 1.0)
            history.append(weights(net))
        learner.average()
        learner.average()  # nothing was stepped since: nothing to do
        return history, weights(net), moments(learner), learner.steps

    found = side_by_side(2, work)
    nets = [model(), model()]
    alone = [Learner(net, OPTIMISATION, Ranks()) for net in nets]
    for number, batch in enumerate(rows):
        for rank, (net, learner) in enumerate(zip(nets, alone, strict=True)):
            learner.step(loss_of(net, batch[rank::2]), 1.0)
        if (number + 1) % every == 0 or number == BATCHES - 1:
            with torch.no_grad():
                for pair in zip(*(net.parameters() for net in nets), strict=True):
                    mean = (pair[0] + pair[1]) / 2
                    states = [
                        learner.rate.optimiser.state[each] for learner, each in zip(alone, pair, strict=True)
                    ]
                    for name in ("exp_avg", "exp_avg_sq"):
                        middle = (states[0][name] + states[1][name]) / 2
                        for state in states:
                            state[name].copy_(middle)
                    for each in pair:
                        each.copy_(mean)
    for _, ended, momentum, steps in found:
        torch.testing.assert_close(ended, weights(nets[0]), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(momentum, moments(alone[0]), rtol=1e-9, atol=1e-12)
        assert steps == BATCHES
    between = [torch.equal(a[0], b[0]) for a, b in zip(found[0][0], found[1][0], strict=True)]
    assert between == [(number + 1) % every == 0 for number in range(BATCHES)]


def test_what_a_learner_has_and_counts_goes_through_its_state() -> None:
    rows, net, other = data(), model(), model()
    learner = Learner(net, OPTIMISATION, Ranks())
    learner.step(loss_of(net, rows[0]))
    resumed = Learner(other, OPTIMISATION, Ranks())
    other.load_state_dict(net.state_dict())
    resumed.restore(copy.deepcopy(learner.state()))
    for each, its in ((learner, net), (resumed, other)):
        each.step(loss_of(its, rows[1]))
        assert each.steps == 2
    assert all(torch.equal(a, b) for a, b in zip(weights(net), weights(other), strict=True))
    assert len(learner.settled()) == 2
    assert learner.settled() == []
    learner.seconds()
    assert learner.seconds() == {}


def test_steps_are_those_of_torchs_own_adam_and_clipping() -> None:
    """Also after a step that is left out, and after one in which a weight has no gradient."""
    net, twin = model(), model()
    learner = Learner(net, OPTIMISATION, Ranks())
    adam = torch.optim.Adam(twin.parameters(), lr=0.05, weight_decay=0.01)
    for number, batch in enumerate(data().repeat(2, 1, 1)):
        for each in (net, twin):
            each[2].bias.requires_grad_(number != 2)
        if number == 3:
            learner.step(loss_of(net, batch) * torch.nan)
            continue
        learner.step(loss_of(net, batch))
        adam.zero_grad()
        loss_of(twin, batch).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        adam.step()
    torch.testing.assert_close(weights(net), weights(twin), rtol=1e-9, atol=1e-12)
