"""The header of a lane: fixed parameters of its partitioner, and of the log that it follows."""

from schemas.config import Lane
from schemas.store import LaneHeader, LogHeader
from stream.partition.interface import algorithms, create


def lane_header(lane: Lane, log: LogHeader) -> LaneHeader:
    """The header of a lane that follows a log.

    Raises:
        PartitionError: Unknown algorithm, or parameters it doesn't take.
    """
    create(lane.algorithm, lane.params, parts=lane.parts, seed=lane.seed, window=lane.window)
    return LaneHeader(
        lane=lane.name,
        algorithm=lane.algorithm,
        kind=algorithms()[lane.algorithm].kind,  # type: ignore[attr-defined]  # a class with the attribute
        parts=lane.parts,
        window=lane.window,
        edge_life=lane.edge_life,
        seed=lane.seed,
        base_every=lane.base_every,
        params=lane.params,
        graph=log.graph,
        interval_us=log.interval_us,
        node_features=log.node_features,
        edge_features=log.edge_features,
        segments=log.segments,
    )
