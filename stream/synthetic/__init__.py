"""Synthetic streams: the demo's communities, R-MAT for load tests, the graphs of DistDy's Table 2, payments with fraud."""

from freshet_graph.stream.synthetic.interactions import DEFAULT_SPAN_S, START_S, Shape, interactions
from freshet_graph.stream.synthetic.payments import FraudOptions, payments
from freshet_graph.stream.synthetic.table2 import PAPER_GRAPHS, PaperGraph, paper_snapshots

__all__ = [
    "DEFAULT_SPAN_S",
    "PAPER_GRAPHS",
    "START_S",
    "FraudOptions",
    "PaperGraph",
    "Shape",
    "interactions",
    "paper_snapshots",
    "payments",
]
