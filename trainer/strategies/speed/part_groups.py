"""Distribution of parts, nodes and events over ranks: parts shuffled and combined (SPEED section II-C)."""

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Int32, Int64

NOBODY = -1


def combine(parts: int, ranks: int, seed: int, round_number: int) -> Int32:
    """The rank of every part: parts in a random order, dealt out evenly.

    Args:
        parts: K, at least ``ranks``. If equal, they are not shuffled: part k goes to rank k.
        ranks: Number of ranks.
        seed: Of the run.
        round_number: Number of the shuffle.

    Returns:
        int32 (K,), the same on every rank.
    """
    if parts == ranks:
        return np.arange(parts, dtype=np.int32)
    order = np.random.default_rng([seed, round_number, 0x5AC]).permutation(parts)
    dealt = np.empty(parts, np.int32)
    dealt[order] = np.arange(parts, dtype=np.int32) % ranks
    return dealt


class PartGroups:
    """Owners of nodes, and ranks of events, under one combination of parts.

    A node belongs to the rank of its home, one without a home to that of part id mod K. Shared nodes have a copy on
    every rank while it learns.

    Attributes:
        rank: This rank.
        ranks: Number of ranks.
        owner: int32 (nodes,), rank of each node.
        shared: bool (nodes,).
    """

    def __init__(self, parts: int, rank: int, ranks: int, seed: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._parts, self._seed = parts, seed
        self._home: Int32 = np.empty(0, np.int32)
        self.place(self._home, np.empty(0, np.bool_), 0)

    def place(self, home: Int32, shared: Bool, round_number: int) -> None:
        """Take over homes, shared nodes and a combination of parts.

        Args:
            home: int32 (nodes,), part of each node; −1: none.
            shared: bool (nodes,).
            round_number: Number of the shuffle.
        """
        self._home, self.shared, self.round_number = home, shared, round_number
        self._dealt = combine(self._parts, self.ranks, self._seed, round_number)
        self.owner = self._owners()

    def grow(self, num_nodes: int) -> None:
        """Make room for ids below ``num_nodes``; new ones have no home yet."""
        more = num_nodes - len(self._home)
        if more > 0:
            self._home = np.concatenate([self._home, np.full(more, NOBODY, np.int32)])
            self.shared = np.concatenate([self.shared, np.zeros(more, np.bool_)])
            self.owner = self._owners()

    def keep(self, kept_nodes: Int64) -> None:
        """Forget all nodes except these, ascending, which are renumbered in their order and keep their owners."""
        homes = np.where(self._home >= 0, self._home, np.arange(len(self._home)) % self._parts)
        self._home, self.shared = homes.astype(np.int32)[kept_nodes], self.shared[kept_nodes]
        self.owner = self._owners()

    def owners(self, nodes: Int64) -> Int32:
        """int32 (n,) rank of each node; −1 for ids beyond the known ones."""
        inside = nodes < len(self.owner)
        if inside.all():
            return self.owner[nodes]
        owners = np.full(len(nodes), NOBODY, np.int32)
        owners[inside] = self.owner[nodes[inside]]
        return owners

    def is_local(self) -> Bool:
        """Nodes that this rank has while it learns, bool (nodes,)."""
        return (self.owner == self.rank) | self.shared

    def weigh(self, nodes: Int64) -> Int64:
        """Relative frequency of each node among this rank's negatives, so that those of all ranks are uniform.

        A node of one rank can be a negative there only, a shared one on every rank. Unknown ids are dealt out like all
        others: if every rank had them, most negatives would be recognised by their missing past.

        Args:
            nodes: int64 (n,), any ids.

        Returns:
            int64 (n,): the number of ranks for own nodes, 1 for shared nodes, 0 for nodes of other ranks.
        """
        owner, shared = self.owners(nodes), np.zeros(len(nodes), np.bool_)
        known = owner != NOBODY
        shared[known] = self.shared[nodes[known]]
        owner[~known] = self._dealt[nodes[~known] % self._parts]
        return np.where(shared, 1, np.where(owner == self.rank, self.ranks, 0))

    def learners(self, src: Int64, dst: Int64, part: Int32) -> Int32:
        """The one rank that learns each event: it has both ends.

        If one end is shared, it is the other's rank. If both are, it is that of the event's part, or else the source's.

        Args:
            src: int64 (E,).
            dst: int64 (E,).
            part: int32 (E,), part of each event in the lane; −1: none.

        Returns:
            int32 (E,); −1: the event is in no rank's sub-graph.
        """
        of_src, of_dst = self.owner[src], self.owner[dst]
        free_src, free_dst = self.shared[src], self.shared[dst]
        both = np.where(part >= 0, self._dealt[np.maximum(part, 0)], of_src)
        alone = np.where(of_src == of_dst, of_src, NOBODY)
        learner = np.where(free_src, np.where(free_dst, both, of_dst), np.where(free_dst, of_src, alone))
        return learner.astype(np.int32)

    def state(self) -> dict[str, NDArray[np.generic] | int]:
        """The state that ``restore`` continues from, with any number of ranks."""
        return {"home": self._home, "shared": self.shared, "round_number": self.round_number}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Continue from a ``state()``."""
        home, shared = (np.asarray(state[name]).copy() for name in ("home", "shared"))
        self.place(home, shared, int(state["round_number"]))

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._home.nbytes + self.owner.nbytes + self.shared.nbytes

    def _owners(self) -> Int32:
        owner = self._dealt[self._home]  # −1 finds some rank, which isn't its own yet
        bare = np.flatnonzero(self._home < 0)
        owner[bare] = self._dealt[bare % self._parts]
        return owner
