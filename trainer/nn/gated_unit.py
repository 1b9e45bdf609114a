"""The gated recurrent unit over rows that begin with the state: one product for all its weights, and its gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainer.nn.compiled import kernels_fit
from trainer.nn.gates import gates_back, gates_open
from trainer.nn.products import Table, side_by_side


class GatedUnit(torch.autograd.Function):
    """Next states from [state ‖ rest ‖ φ]; the message is that, or the same without the state.

    W_i · message + W_h · state is one product of the whole row with the sum of both weights. Only the new gate's part of
    W_h is separate, because its result is multiplied by the reset gate. Gradients of W_i and W_h are cut out of one
    product, too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        row: Tensor,
        timed: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor,
        bias_hh: Tensor,
        own: bool,
        products: torch.dtype | None,
    ) -> Tensor:
        """Next states (n, d).

        Args:
            ctx: Of autograd.
            row: (n, d + rest), states in front; without gradient.
            timed: (n, T), φ.
            weight_ih: (3 d, message), as ``torch.nn.GRUCell`` has it.
            weight_hh: (3 d, d).
            bias_ih: (3 d,).
            bias_hh: (3 d,).
            own: Whether the state is part of the message.
            products: Type of products; None: that of the rows.
        """
        count, d = len(row), weight_hh.shape[1]
        weight = weight_ih.clone() if own else pad(weight_ih, (d, 0))
        weight[: 2 * d, :d] += weight_hh[: 2 * d]
        table = side_by_side(row, timed)
        state = table[:, :d].contiguous()
        gates = Table(table, products).times(weight)
        told = Table(state, products).times(weight_hh[2 * d :])
        bias = bias_ih + pad(bias_hh[: 2 * d], (0, d))
        if kernels_fit(row) and row.dtype == torch.float32:
            updated = row.new_empty(count, d)
            arrays = (gates[:count], told[:count], bias, bias_hh[2 * d :], state, updated)
            gates_open(*(each.detach().numpy() for each in arrays))
        else:
            gates.add_(bias)
            told.add_(bias_hh[2 * d :])
            reset, keep = gates[:, : 2 * d].sigmoid_().chunk(2, dim=1)
            new = gates[:, 2 * d :].addcmul_(reset, told).tanh_()
            updated = torch.lerp(new, state, keep)[:count]
        ctx.save_for_backward(table, state, weight, gates, told)
        ctx.own, ctx.products, ctx.timed = own, products, timed.shape[1]
        return updated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of φ, weights and biases."""
        table, state, weight, gates, told = ctx.saved_tensors
        (gradient,), d = gradients, told.shape[1]
        count = len(gradient)
        by_gates, by_told = torch.empty_like(gates), torch.empty_like(told)
        by_gates[count:] = 0
        by_told[count:] = 0
        if kernels_fit(gradient) and gradient.dtype == torch.float32:
            sums = gradient.new_zeros(4 * d)
            arrays = (gradient.contiguous(), gates, told, state, by_gates, by_told, sums)
            gates_back(*(each.numpy() for each in arrays))
            by_bias, by_told_bias = sums[: 3 * d], sums[3 * d :]
        else:
            gradient = pad(gradient, (0, 0, 0, len(gates) - count))
            reset, keep, new = gates.chunk(3, dim=1)
            by_reset, by_keep, by_new = by_gates.chunk(3, dim=1)
            by_new.copy_(gradient * (1 - keep) * (1 - new * new))
            by_keep.copy_(gradient * (state - new) * keep * (1 - keep))
            torch.mul(by_new, reset, out=by_told)
            by_reset.copy_(by_told * told * (1 - reset))
            by_bias, by_told_bias = by_gates.sum(dim=0), by_told.sum(dim=0)
        g = Table(by_gates, ctx.products)
        by_weight = g.summed_with(Table(table, ctx.products))
        by_new_weight = Table(by_told, ctx.products).summed_with(Table(state, ctx.products))
        by_timed = g.times(weight[:, -ctx.timed :].t())[:count] if ctx.needs_input_grad[1] else None
        return (
            None,
            by_timed,
            by_weight if ctx.own else by_weight[:, d:],
            torch.cat([by_weight[: 2 * d, :d], by_new_weight]),
            by_bias,
            torch.cat([by_bias[: 2 * d], by_told_bias]),
            None,
            None,
        )
