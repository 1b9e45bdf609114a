"""Vertex partitioners: every live node has one owner."""

from freshet_graph.stream.partition.vertex.base import VertexPartitioner

__all__ = ["VertexPartitioner"]
