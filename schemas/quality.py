"""Figures of a partition's quality: one table, from which records, metrics, tables and pictures follow.

A new figure is a field of ``Quality`` here, and a line where it is computed.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class FigureDisplay:
    """Where a figure is shown, besides results for machines, which have all of them.

    Attributes:
        lane: Whether ``inspect`` shows it of each lane.
        column: Its heading and the format of a cell in the table that compares partitioners.
        panel: Its title in the picture that compares partitioners.
        scale: Its factor there, 100 for percentages.
        gauge: Metric of the newest snapshot, without prefix; its help text; and its label ``kind``, if it has one.
        new: Whether records of older releases lack it. It is left out if it has no meaning, so that checksums stay.
    """

    lane: bool = False
    column: tuple[str, str] | None = None
    panel: str | None = None
    scale: float = 1.0
    gauge: tuple[str, str, str | None] | None = None
    new: bool = False


def _figure(**shown: Any) -> Any:
    return field(default=math.nan, metadata={"shown": FigureDisplay(**shown)})


_BALANCE = ("lane_balance_ratio", "Largest over mean part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Running quality of a partition; ``docs/semantics.md`` defines each figure. NaN if a figure has no meaning.

    ``foreign_parts`` is the lane's: the mean λ of the nodes with a neighbour, of vertex lanes only.
    """

    cut: float = _figure(
        lane=True,
        column=("cut or discarded %", ".1f"),
        panel="Cut or discarded on arrival, %",
        scale=100.0,
        gauge=("lane_cut_ratio", "Cut or discarded share, newest snapshot", None),
    )
    cut_final: float = _figure()
    replication_factor: float = _figure(
        lane=True, gauge=("lane_replication_factor", "Parts a node is in, mean", None)
    )
    training_replication_factor: float = _figure(
        column=("train RF", ".2f"), panel="Training replication factor"
    )
    shared_share: float = _figure(lane=True)
    node_balance: float = _figure(
        lane=True, column=("node balance", ".2f"), panel="Node balance, max / mean", gauge=(*_BALANCE, "node")
    )
    edge_balance: float = _figure(lane=True, column=("edge balance", ".2f"), gauge=(*_BALANCE, "edge"))
    utility: float = _figure()
    moved_share: float = _figure(
        lane=True,
        column=("moved %", ".1f"),
        panel="Nodes that move per snapshot, %",
        scale=100.0,
        gauge=("lane_moved_ratio", "Moved nodes over live ones", None),
    )
    foreign_parts: float = _figure(lane=True, new=True)


FIGURES: dict[str, FigureDisplay] = {figure.name: figure.metadata["shown"] for figure in fields(Quality)}
"""All figures, by name."""
