"""Moving means of relu(X W), block of nodes by block."""

from typing import Any

import torch
from torch import Tensor

from freshet_graph.trainer.nn.recurrent import node_blocks


class RectifiedMeans(torch.autograd.Function):
    """Means of relu(X W) over the last ``bandwidth`` snapshots, by running sums.

    One operation after the other over all nodes, and a sum for each mean, would read and write each row ten times from memory.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, newest: int, bandwidth: int) -> Tensor:
        """Pass over the snapshots.

        Args:
            ctx: Of autograd.
            rows: X, (t, n, w), oldest first.
            weight: W, (d, w).
            newest: Number of means that are wanted, up to the newest snapshot.
            bandwidth: Snapshots that a mean is over; fewer at the beginning.

        Returns:
            (newest, n, d).
        """
        wanted = range(len(rows) - newest + 1, len(rows) + 1)
        first = max(0, wanted.start - bandwidth)
        means = rows.new_empty(newest, rows.shape[1], len(weight))
        rectified = rows.new_empty(len(rows) - first, *means.shape[1:])
        for nodes in node_blocks(rows):
            total = rectified.new_zeros(rectified[:, nodes].shape[1:])
            for end, y in enumerate(rectified[:, nodes], first + 1):
                total += torch.mm(rows[end - 1, nodes], weight.t(), out=y).relu_()
                if end - first > bandwidth:
                    total -= rectified[end - first - bandwidth - 1, nodes]
                if end in wanted:
                    torch.mul(total, 1 / min(bandwidth, end), out=means[end - wanted.start, nodes])
        ctx.wanted, ctx.first, ctx.bandwidth = wanted, first, bandwidth
        ctx.save_for_backward(rows, weight, rectified)
        return means

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of what ``forward`` took."""
        (by_means,), (rows, weight, rectified) = gradients, ctx.saved_tensors
        wanted, first, bandwidth = ctx.wanted, ctx.first, ctx.bandwidth
        by_rows, by_weight = None, torch.zeros_like(weight)
        if ctx.needs_input_grad[0]:
            by_rows = torch.empty_like(rows)
            by_rows[:first] = 0
        for nodes in node_blocks(rows):
            total = rectified.new_zeros(rectified[:, nodes].shape[1:])
            for end in range(len(rows), first, -1):
                for of_mean, sign in (
                    (end, 1),
                    (end + bandwidth, -1),
                ):  # those that begin and cease to have this row
                    if of_mean in wanted:
                        by_mean = by_means[of_mean - wanted.start, nodes]
                        total.add_(by_mean, alpha=sign / min(bandwidth, of_mean))
                by_product = torch.ops.aten.threshold_backward(total, rectified[end - 1 - first, nodes], 0)
                by_weight.addmm_(by_product.t(), rows[end - 1, nodes])
                if by_rows is not None:
                    torch.mm(by_product, weight, out=by_rows[end - 1, nodes])
        return by_rows, by_weight, None, None
