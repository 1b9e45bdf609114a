"""The message aggregator: one mail per node from the mails of a group of events (TGN equation 3)."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from stream.arrays.kinds import Int64
from trainer.device import to_device

Aggregate = Callable[[Tensor, Int64, int], Tensor]


def latest(node: Int64, count: int) -> Int64:
    """The place of each node's latest mail, int64 (count,); see ``last``."""
    newest = np.empty(count, np.int64)
    newest[node] = np.arange(len(node))  # the last value of a repeated place stays
    return newest


def last(mails: Tensor, node: Int64, count: int) -> Tensor:
    """The latest mail of each node.

    Args:
        mails: (m, width) in order of time.
        node: int64 (m,), the node of each, 0 … count − 1; every one occurs.
        count: Nodes.

    Returns:
        (count, width).
    """
    if len(mails) == count and (node[1:] > node[:-1]).all():
        return mails  # one per node, in order
    return mails[to_device(latest(node, count), mails.device)]


def mean(mails: Tensor, node: Int64, count: int) -> Tensor:
    """The mean of each node's mails; see ``last``."""
    sums = mails.new_zeros(count, mails.shape[1]).index_add(0, to_device(node, mails.device), mails)
    counts = to_device(np.bincount(node, minlength=count), mails.device)
    return sums / counts.to(mails.dtype).unsqueeze(1)


AGGREGATORS: dict[str, Aggregate] = {"last": last, "mean": mean}
