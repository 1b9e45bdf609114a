"""Products by oneDNN are those of torch, and so are their gradients, whatever the shapes and strides."""

import pytest
import torch

from trainer.nn import products
from trainer.nn.products import Table, dense, side_by_side


@pytest.mark.parametrize(("rows", "width", "out"), [(0, 3, 2), (1, 1, 1), (63, 20, 7), (700, 30, 50)])
@pytest.mark.parametrize("cut", [False, True])
def test_dense_is_linear_with_its_gradients(
    rows: int, width: int, out: int, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_WORTH", 0)  # all of them by oneDNN
    torch.manual_seed(0)
    more = 5 if cut else 0  # tables that are cut out of wider ones
    x = torch.randn(rows, width + more)[:, :width].requires_grad_()
    weight = torch.randn(out, width + more)[:, :width].requires_grad_()
    bias, told = torch.randn(out, requires_grad=True), torch.randn(rows, out)
    found, expected = dense(x, weight, bias), torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    gradients = [torch.autograd.grad((y * told).sum(), (x, weight, bias)) for y in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_table_counts_its_own_rows_only(dtype: torch.dtype | None) -> None:
    """Padding to few lengths is neither seen in what comes back nor summed up."""
    torch.manual_seed(0)
    x, y, weight = torch.randn(70, 12), torch.randn(70, 9), torch.randn(5, 12)
    near = {"atol": 1e-4, "rtol": 1e-4} if dtype is None else {"atol": 0.3, "rtol": 0.05}
    table = Table(x, dtype)
    torch.testing.assert_close(table.times(weight), x @ weight.t(), **near)
    torch.testing.assert_close(table.summed_with(Table(y, dtype)), x.t() @ y, **near)
    both = side_by_side(x, y)
    assert (both[:70] == torch.cat([x, y], dim=1)).all() and not both[70:].any()
    torch.testing.assert_close(
        Table(both, dtype).times(weight.repeat(1, 2)[:, :21])[:70],
        both[:70] @ weight.repeat(1, 2)[:, :21].t(),
        **near,
    )
    torch.testing.assert_close(Table(x.double()).times(weight.double()), x.double() @ weight.double().t())


def test_dense_in_a_smaller_type_is_close_and_gives_gradients_of_the_larger() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(700, 60, requires_grad=True), torch.randn(50, 60, requires_grad=True)
    found = dense(x, weight, None, torch.bfloat16)
    assert found.dtype == torch.float32 and not torch.equal(found, dense(x, weight))
    torch.testing.assert_close(found, dense(x, weight), atol=0.3, rtol=0.05)
    by_x, by_weight = torch.autograd.grad(found.square().sum() / 100, (x, weight))
    expected = torch.autograd.grad(dense(x, weight).square().sum() / 100, (x, weight))
    torch.testing.assert_close(by_x, expected[0], atol=0.5, rtol=0.1)
    torch.testing.assert_close(by_weight, expected[1], atol=2.0, rtol=0.1)
