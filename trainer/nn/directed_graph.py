"""A directed graph, compressed both ways."""

from dataclasses import dataclass

from trainer.nn.csr_graph import CSRGraph


@dataclass(frozen=True)
class DirectedGraph:
    """A square graph whose edges have a direction.

    Attributes:
        into: Row v lists the u with an edge u → v, ascending.
        out_of: Row u lists the v with an edge u → v, ascending: the transpose of ``into``.

    Note:
        Values are the edges' weights, the same in both; None: all are 1. Backward passes build no transpose.
    """

    into: CSRGraph
    out_of: CSRGraph

    def __post_init__(self) -> None:
        """Give each graph its transpose."""
        for graph, other in ((self.into, self.out_of), (self.out_of, self.into)):
            # A copy: graphs that refer to each other would hold their tensors until garbage collection.
            transpose = CSRGraph(other.indptr, other.sources, other.num_sources, values=other.values)
            vars(graph).setdefault("transpose", transpose)
