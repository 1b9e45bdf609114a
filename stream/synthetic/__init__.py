"""Synthetic streams: the demo's communities, R-MAT for load tests, and the graphs of DistDy's Table 2."""

from freshet_graph.stream.synthetic.interactions import DEFAULT_SPAN_S, START_S, Shape, interactions
from freshet_graph.stream.synthetic.table2 import PAPER_GRAPHS, PaperGraph, paper_snapshots

__all__ = [
    "DEFAULT_SPAN_S",
    "PAPER_GRAPHS",
    "START_S",
    "PaperGraph",
    "Shape",
    "interactions",
    "paper_snapshots",
]
