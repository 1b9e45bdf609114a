"""Structural embeddings over all ranks: each (node, snapshot, layer) is computed by the rank that owns the node.

DistDy section 3.1 has the owner of a training node sample its neighbours, fetch the features of those that other
workers store, and gather the node's structural embeddings of earlier snapshots from the workers that stored it
then. With more than one layer a neighbour's own neighbours are with the neighbour's owner, so here every layer's
row is computed by its owner and sent to whoever asks: features of remote neighbours at the lowest layer,
embeddings above. Nothing is computed twice, edges never travel, and with equal samples the result is that of one
rank, whatever the partition.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.past import Past
from trainer.data.remote import Request
from trainer.device import to_device
from trainer.models.interface import SnapshotModel
from trainer.nn.csr_graph import CSRGraph
from trainer.ranks import Ranks

Int64 = NDArray[np.int64]
Encode = Callable[[Int64], Tensor]


def structural_embeddings(
    model: SnapshotModel, past: Past, keys: Int64, encode: Encode, ranks: Ranks, seed: int
) -> Tensor:
    """Embed (node, snapshot) keys; a collective, differentiable across ranks.

    Args:
        model: Gives layers and fan-outs.
        past: The window.
        keys: int64 (n,) sorted and distinct, of any owner; other ranks may ask for others, or for none.
        encode: Input rows (m, d₀) of sorted, distinct keys; a collective.
        ranks: All ranks.
        seed: Of the neighbour samples; equal on all ranks.

    Returns:
        (n, width), zero rows for keys that nobody owns.
    """
    levels = []
    wanted = keys
    for layer in reversed(range(len(model.fanouts))):
        request = Request(wanted, past.homes(wanted), ranks)
        targets, place = np.unique(request.asked, return_inverse=True)
        indptr, neighbours = past.sample(targets, model.fanouts[layer], seed + layer)
        wanted = np.unique(np.concatenate([targets, neighbours]))
        graph = CSRGraph(
            to_device(indptr, ranks.device),
            to_device(np.searchsorted(wanted, neighbours), ranks.device),
            len(wanted),
        )
        own = to_device(np.searchsorted(wanted, targets), ranks.device)
        levels.append((layer, request, graph, own, to_device(place, ranks.device)))
    x = encode(wanted)
    for layer, request, graph, own, answered in reversed(levels):
        rows = model.message_pass(layer, graph, x.index_select(0, own), x)
        x = request.answer(rows.index_select(0, answered), "embeddings")
    return x
