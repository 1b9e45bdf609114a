"""Vertex partitioners: every live node has one owner."""

from stream.partition.vertex.base import VertexPartitioner

__all__ = ["VertexPartitioner"]
