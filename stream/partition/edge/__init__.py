"""Edge partitioners: every insert gets a part or is discarded, and nodes are in sets of parts."""

from freshet_graph.stream.partition.edge.base import EdgePartitioner

__all__ = ["EdgePartitioner"]
