"""DistDy: online vertex partitioning with storage prices and rewards (seed 000, section 4).

Each snapshot: a base partition that keeps nodes where they are (Alg. 1), sweeps that move nodes to where
their neighbours are as far as the prices of storage allow (Alg. 2), then new prices and rewards (Alg. 3).
What the paper leaves open is decided as ``docs/partitioning.md`` says; in short:

- Storage is counted in bytes: a node that stays takes a reference and its changed segments, a node that is
  new or moves takes the full vector.
- The score of a server (line 6) uses the live load a^k, which is what balances. Within a snapshot the load
  is counted in nodes of the base partition's mean size: then scores are differences of one payoff,

      Π = U + Σ_v reward(v) − Σ_k (1 + (ln 2η − 1)/|V|)·Λ_k·s̄·n_k(n_k + 1)/2

  (U: weight inside servers, Λ_k: price of a byte for the window, s̄: mean size, n_k: nodes on k), so every
  move raises it and no sweep can worsen it. Bytes count in the prices and in what fits.
- Prices balance only where memory is scarce beside the weights: on small dense graphs one server would take
  all nodes. ``max_imbalance`` bounds the nodes a server; it only forbids moves.
- ``reward="stay"`` pays μ to a node that stays; ``reward="paper"`` charges it, as φ is printed.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from stream.partition.distdy_kernels import base_partition, inside_weight, refine
from stream.partition.interface import CapacityError, PartitionError, register
from stream.partition.quality import DEFAULT_FANOUT, sampled_share
from stream.partition.vertex import VertexPartitioner
from stream.snapshots.delta import Float64, Int32, Int64, SnapshotDelta

REFERENCE_BYTES = 8
"""What a node takes in a snapshot that changes nothing of it: a reference to where its vector is."""

_VALUE_BYTES = 4
_SLACK = 4.0
"""Room of the default capacity over what a window can need: about what η = 6 takes for granted."""


@register
class DistDy(VertexPartitioner):
    """DistDy Algs. 1 to 3.

    Args:
        parts: K servers.
        seed: Unused: nothing is drawn.
        window: w, snapshots whose storage is priced.
        fanout: f, neighbours that a trainer samples a node.
        batch: B, training nodes a batch; scales weights and prices alike.
        eta: η > e/2: how much memory there is over what is used; P = 2η.
        sweeps: M, sweeps a snapshot at most.
        capacity: D^k in bytes, one for all servers or one each. None: at every snapshot 4 times what the
            window would take if all nodes moved, divided by K, plus one node.
        reward: Pay μ to nodes that stay, or charge it as the paper prints.
        width: Values that a node carries where the graph has no node features (an embedding).
        max_imbalance: No server holds more than this times |V|/K nodes, plus one, except where memory leaves no
            other place. None: only memory and its prices bound a server.
    """

    name: ClassVar[str] = "distdy"

    def __init__(
        self,
        *,
        parts: int,
        seed: int = 0,
        window: int = 4,
        fanout: int = DEFAULT_FANOUT,
        batch: int = 512,
        eta: float = 6.0,
        sweeps: int = 300,
        capacity: int | Sequence[int] | None = None,
        reward: Literal["stay", "paper"] = "stay",
        width: int = 32,
        max_imbalance: float | None = 1.2,
    ) -> None:
        super().__init__(parts=parts, seed=seed, window=window, fanout=fanout)
        for value, name in (
            (fanout, "fanout"),
            (batch, "batch"),
            (sweeps, "sweeps"),
            (window, "window"),
            (width, "width"),
        ):
            if value < 1:
                raise PartitionError(f"distdy needs {name} ≥ 1, found {value}")
        if not eta > math.e / 2:
            raise PartitionError(f"distdy needs eta > e/2, so that rewards are positive, found {eta}")
        if reward not in ("stay", "paper"):
            raise PartitionError(f"distdy takes reward 'stay' or 'paper', found {reward!r}")
        if max_imbalance is not None and not 1 <= max_imbalance < math.inf:
            raise PartitionError(
                f"distdy takes max_imbalance ≥ 1, nodes on a server over their mean, or null, found {max_imbalance}"
            )
        self.max_imbalance = max_imbalance
        self.fanout, self.batch, self.eta, self.sweeps, self.width = fanout, batch, eta, sweeps, width
        self.reward = reward
        self._capacity = _capacities(capacity, parts)
        self._stored: Int64 = np.zeros((window - 1, parts), np.int64)  # a^k of the last w − 1 snapshots
        self._reward: Float64 = np.zeros(parts)  # μ of this snapshot for nodes that are on k
        self._least_utility = math.inf  # running minimum of U/Σa, per byte

    def _place(self, delta: SnapshotDelta) -> Int32:
        live, graph = delta.live, delta.graph
        if len(live) == 0:
            self._stored = _shift(self._stored, np.zeros(self.parts, np.int64))
            return np.empty(0, np.int32)
        stay_bytes, full_bytes = self._sizes(delta)
        capacity = self._capacity_now(len(live), full_bytes)
        free = capacity - self._stored.sum(axis=0)
        start = free.copy()
        most = self._most_nodes(len(live))
        base, placed = base_partition(self._home[live], stay_bytes[live], full_bytes, free, most)
        if placed < len(live):
            raise CapacityError(
                f"distdy cannot place {len(live) - placed} of {len(live)} nodes of snapshot {delta.tau}: each needs "
                f"{full_bytes} bytes and the {self.parts} servers have {free.tolist()} bytes left of {capacity.tolist()}; "
                "raise capacity or parts"
            )
        owner = np.full(delta.num_nodes, -1, np.int32)
        owner[live] = base
        load = start - free
        chance = sampled_share(graph.indptr, self.fanout)
        scale = full_bytes * self.batch / len(live)  # DistDy section 3.4

        utility = inside_weight(graph.indptr, graph.indices, chance, scale, owner)
        price = self._prices(capacity, np.zeros(self.parts, np.int64), self._base_price(utility, load))
        log = math.log(2 * self.eta) - 1
        refine(
            graph.indptr,
            graph.indices,
            live,
            chance,
            scale,
            self._home,
            owner,
            stay_bytes,
            full_bytes,
            free,
            self._reward if self.reward == "stay" else -self._reward,
            (1 + log / len(live)) * price * load.sum() / len(live),
            most,
            self.sweeps,
        )
        load = start - free
        utility = inside_weight(graph.indptr, graph.indices, chance, scale, owner)
        used = int(self._stored.sum() + load.sum())
        if utility > 0:
            self._least_utility = min(self._least_utility, utility / used)
        price = self._prices(capacity, load, self._base_price(utility, load))
        self._reward = np.maximum(log * (utility / self.parts - price * load) / len(live), 0.0)
        self._stored = _shift(self._stored, load)
        return owner[live]

    def _sizes(self, delta: SnapshotDelta) -> tuple[Int64, int]:
        """Bytes a node takes where it was, int64 (num_nodes,), and anywhere else."""
        width = delta.node_features or self.width
        stay = np.full(delta.num_nodes, REFERENCE_BYTES, np.int64)
        changed = delta.changed_segments.astype(np.int64)
        stay[delta.feature_nodes] += _VALUE_BYTES * width * changed // delta.segments
        return stay, REFERENCE_BYTES + _VALUE_BYTES * width

    def _most_nodes(self, live: int) -> int:
        """Nodes that a server may hold of this many."""
        if self.max_imbalance is None:
            return live
        return int(min(self.max_imbalance * live / self.parts + 1, live))

    def _capacity_now(self, live: int, full_bytes: int) -> Int64:
        if self._capacity is not None:
            return self._capacity
        need = int(self._stored.sum()) + live * full_bytes
        return np.full(self.parts, int(_SLACK * need / self.parts) + full_bytes, np.int64)

    def _base_price(self, utility: float, load: Int64) -> float:
        """F: the least utility a byte seen so far, or this snapshot's at the first one, over 2η."""
        least = self._least_utility
        if math.isinf(least):
            least = utility / max(int(self._stored.sum() + load.sum()), 1)
        return least / (2 * self.eta)

    def _prices(self, capacity: Int64, load: Int64, base: float) -> Float64:
        """Sum of λ_t over t in [τ, τ + w − 1] a server, float64 (K,): what a byte costs for the window.

        At t = τ + j the snapshots before τ − (w − 1 − j) have left the window (DistDy eq. 11).
        """
        in_window = np.zeros((self.window, self.parts))
        in_window[:-1] = self._stored[::-1].cumsum(axis=0)[::-1]
        prices: Float64 = base * np.exp(math.log(2 * self.eta) * (in_window + load) / capacity)
        over_window: Float64 = prices.sum(axis=0)
        return over_window

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {
            "stored": self._stored,
            "reward": self._reward,
            "least_utility": np.array(self._least_utility),
        }

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._stored, self._reward = memory["stored"], memory["reward"]
        self._least_utility = float(memory["least_utility"])


def _capacities(capacity: int | Sequence[int] | None, parts: int) -> Int64 | None:
    if capacity is None:
        return None
    given = np.atleast_1d(np.asarray(capacity, np.int64))
    if len(given) not in (1, parts) or (given < 1).any():
        raise PartitionError(f"distdy takes one capacity or {parts}, each at least 1 byte, found {capacity}")
    return np.broadcast_to(given, parts).copy()


def _shift(stored: Int64, newest: Int64) -> Int64:
    """History of the last w − 1 snapshots, oldest first."""
    return np.concatenate([stored, newest[None]])[1:] if len(stored) else stored
