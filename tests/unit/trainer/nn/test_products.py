"""Products in a smaller type are those of the larger one but for rounding, and so are their gradients."""

import pytest
import torch

from freshet_graph.trainer.nn.products import dense


@pytest.mark.parametrize("rows", [0, 1, 63, 700])
def test_dense_in_a_smaller_type_is_close_and_gives_gradients_of_the_larger(rows: int) -> None:
    """Whatever the number of rows: padding to few lengths is neither seen in what comes back nor summed up."""
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 60, requires_grad=True), torch.randn(50, 60, requires_grad=True)
    product, exact = dense(x, weight, None, torch.bfloat16), dense(x, weight)
    assert product.dtype == torch.float32 and (not rows or not torch.equal(product, exact))
    torch.testing.assert_close(product, exact, atol=0.3, rtol=0.05)
    gradients = [torch.autograd.grad(y.square().sum() / 100, (x, weight)) for y in (product, exact)]
    torch.testing.assert_close(gradients[0][0], gradients[1][0], atol=0.5, rtol=0.1)
    torch.testing.assert_close(gradients[0][1], gradients[1][1], atol=2.0, rtol=0.1)
