"""Parts of the memory architecture that are computed otherwise than written: each equals its formula, gradients too."""

import numpy as np
import pytest
import torch

from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.models.event_model import EventDecoder
from freshet_graph.trainer.models.tgn import Gated, Plain, last, latest, mean
from freshet_graph.trainer.nn.temporal_attention import TemporalAttention
from freshet_graph.trainer.nn.time_encoding import REACH, CosineTime, LogTime, bumps


def test_cosine_time_and_its_gradient_are_those_of_the_formula() -> None:
    """From no time to thousands of years."""
    torch.manual_seed(0)
    encoder = CosineTime(7).double()
    for shape, longest in (((), 3.0), ((5,), 1e3), ((40, 3), 1e11)):
        seconds = torch.rand(shape, dtype=torch.float64) * longest
        plain = torch.cos(seconds.unsqueeze(-1) * encoder.frequency + encoder.phase)
        weights = torch.rand(plain.shape, dtype=torch.float64)
        found = encoder(seconds)
        torch.testing.assert_close(found, plain, atol=1e-5, rtol=0)
        expected = torch.autograd.grad((plain * weights).sum(), list(encoder.parameters()))
        gradients = torch.autograd.grad((found * weights).sum(), list(encoder.parameters()))
        for ours, theirs in zip(gradients, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert encoder.float()(torch.zeros(2, 3)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bumps_are_those_of_the_formula_and_end_before_numbers_become_subnormal(dtype: torch.dtype) -> None:
    """Compiled, and in torch operations: from no time to never."""
    centres, spacing = torch.linspace(0, 20, 24, dtype=dtype), 20 / 23
    seconds = torch.cat([torch.logspace(-3, 9, 500), torch.tensor([0.0, torch.inf])]).to(dtype).view(2, -1)
    found = bumps(seconds, centres, spacing)
    away = (torch.log1p(seconds.double()).unsqueeze(-1) - centres.double()) / spacing
    expected = torch.where(away.abs() > REACH, 0.0, torch.exp(-(away**2)))
    torch.testing.assert_close(
        found.double(), expected, atol=1e-6 if dtype == torch.float32 else 1e-13, rtol=0
    )
    smallest = torch.finfo(torch.float32).smallest_normal
    assert ((found == 0) | (found.square() > smallest)).all(), "nor is what Adam makes of its gradient"
    assert not found[-1, -1].any(), "never is nowhere"
    assert bumps(torch.tensor([torch.nan], dtype=dtype), centres, spacing).isnan().all()


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", [Gated, Plain])
def test_updaters_and_their_gradients_are_those_of_torch_cells(
    kind: type[Gated] | type[Plain], own: bool
) -> None:
    """Folding the weights that meet the state twice into one product changes nothing but rounding."""
    torch.manual_seed(0)
    cell = kind((6 if own else 3) + 2 + 4, 3, with_state=own).double()
    plain = super(kind, cell).forward
    row = torch.randn(5, 8, dtype=torch.float64)
    timed = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    message = torch.cat([row if own else row[:, 3:], timed], dim=1)
    weights = torch.randn(5, 3, dtype=torch.float64)
    watched = [timed, *cell.parameters()]
    expected, found = plain(message, row[:, :3]), cell((row, timed))
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad((each * weights).sum(), watched) for each in (expected, found))
    for theirs, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_decoder_is_a_perceptron_over_both_ends_and_what_was_seen_of_the_pair() -> None:
    torch.manual_seed(0)
    z, at_src, at_dst = torch.randn(5, 6), torch.tensor([0, 4, 2, 0]), torch.tensor([1, 4, 0, 3])
    encounters = torch.rand(4, len(Encounter)) * 1e5
    walks = torch.rand(4, 3)
    src, dst = z[at_src], z[at_dst]
    full = EventDecoder(6, history=True, walks=3).eval()
    assert full.encounters is not None
    looked = torch.cat([src, dst, src * dst, full.encounters(encounters), walks], dim=1)
    found = full(z, at_src, at_dst, encounters, walks)
    torch.testing.assert_close(found, full.perceptron(looked).squeeze(1))
    plain = EventDecoder(6, history=False, walks=0)
    expected = plain.perceptron(torch.cat([src, dst], dim=1)).squeeze(1)
    torch.testing.assert_close(plain(z, at_src, at_dst, encounters, None), expected)
    z[4] = torch.nan
    scores = plain(z, at_src, at_dst, encounters, None)
    assert torch.isnan(scores).tolist() == [False, True, False, False]


def test_mails_that_no_aggregate_looks_at_are_not_made() -> None:
    """The latest of each node's mails, in the nodes' order; by the mean, all."""
    node = np.array([0, 1, 0, 2, 1])
    mails = torch.arange(10.0).view(5, 2)
    assert latest(node, 3).tolist() == [2, 4, 3]
    chosen = latest(node, 3)
    torch.testing.assert_close(last(mails[chosen], node[chosen], 3), last(mails, node, 3))
    expected = torch.stack([mails[[0, 2]].mean(0), mails[[1, 4]].mean(0), mails[3]])
    torch.testing.assert_close(mean(mails, node, 3), expected)


def test_half_precision_is_for_training_only_and_close() -> None:
    torch.manual_seed(0)
    for kind in (Gated, Plain):
        cell = kind(9, 3, with_state=True)
        message = (torch.randn(5, 7), torch.randn(5, 2))
        exact = cell(message)
        cell.products = torch.bfloat16
        halved = cell.train()(message)
        assert halved.dtype == torch.float32 and not torch.equal(halved, exact)
        torch.testing.assert_close(halved, exact, atol=0.05, rtol=0.05)
        halved.sum().backward()
        assert cell.weight_ih.grad is not None and bool(torch.isfinite(cell.weight_ih.grad).all())
        torch.testing.assert_close(cell.eval()(message), exact)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("encoder", [CosineTime, LogTime])
def test_the_gradient_of_attention_is_that_of_its_formula(
    dropped: bool, encoder: type[CosineTime] | type[LogTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the host by compiled kernels, elsewhere in torch operations: both, and both the same."""
    torch.manual_seed(0)
    attention = TemporalAttention(6, 2, 3, heads=2, dropout=0.5, merge="mlp").double().train(dropped)
    time = encoder(3).double()
    states = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    own, place = torch.tensor([0, 5, 5, 2]), torch.randint(0, 7, (4, 5))
    edge, age_s = torch.randn(4, 5, 2, dtype=torch.float64), 9 * torch.rand(4, 5, dtype=torch.float64)
    there = torch.rand(4, 5) < 0.7
    there[3] = False  # a node without neighbours
    watched = [states, *attention.parameters(), *time.parameters()]

    def embed(*_: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)  # the same weights are dropped each time
        embedded: torch.Tensor = attention(states, own, place, edge, age_s, there, time)
        return embedded

    found = []
    for host in (True, False):
        monkeypatch.setattr(
            "freshet_graph.trainer.nn.temporal_attention.kernels_fit", lambda _, host=host: host
        )
        assert torch.autograd.gradcheck(embed, watched, fast_mode=True)
        embedded = embed()
        found.append([embedded, *torch.autograd.grad(embedded.square().sum(), watched)])
    for compiled, in_torch in zip(*found, strict=True):
        torch.testing.assert_close(compiled, in_torch)


def test_what_is_not_there_has_no_influence_on_attention() -> None:
    torch.manual_seed(0)
    attention, time = TemporalAttention(6, 2, 3, heads=2, dropout=0.0, merge="linear"), CosineTime(3)
    states, own, place = torch.randn(7, 6), torch.tensor([0, 1]), torch.tensor([[2, 3], [4, 5]])
    edge, age_s, there = torch.randn(2, 2, 2), torch.rand(2, 2), torch.tensor([[True, False], [False, False]])
    expected = attention(states, own, place, edge, age_s, there, time)
    states[torch.tensor([3, 4, 5])] = torch.nan
    edge[~there], age_s[~there] = torch.nan, torch.nan
    torch.testing.assert_close(attention(states, own, place, edge, age_s, there, time), expected)


def test_a_state_of_what_is_no_number_is_none() -> None:
    row = torch.zeros(3, 8)
    row[1, 4] = torch.nan
    for kind in (Gated, Plain):
        states = kind(12, 3, with_state=True)((row, torch.zeros(3, 4)))
        assert states.isnan().all(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("history", [True, False])
def test_a_rank_without_queries_scores_none_and_its_gradients_are_zero(
    history: bool,
) -> None:
    """In a small snapshot all events may be those of other ranks."""
    none = torch.zeros(0, dtype=torch.int64)
    decoder = EventDecoder(4, history=history, walks=0)
    z = torch.zeros(0, 4, requires_grad=True)
    logits = decoder(z, none, none, torch.zeros(0, len(Encounter)), None)
    assert logits.shape == (0,)
    time = CosineTime(3)
    encoded = time(torch.zeros(0, 2))
    assert encoded.shape == (0, 2, 3)
    (logits.sum() + encoded.sum()).backward()
    for parameter in (*decoder.parameters(), *time.parameters()):
        assert parameter.grad is None or not parameter.grad.any()
