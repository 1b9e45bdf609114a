"""The interface of all partitioners, and the registry that finds them by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import pyarrow as pa

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.schemas.fields import MAX_PARTS
from freshet_graph.schemas.quality import Quality
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import Why
from freshet_graph.stream.arrays.kinds import Int8, Int32, Int64
from freshet_graph.stream.registry import Registry
from freshet_graph.stream.snapshots.delta import SnapshotDelta

__all__ = [
    "PARTITIONERS",
    "Assignment",
    "CapacityError",
    "Kind",
    "OnlinePartitioner",
    "PartitionError",
    "PartitionerSetting",
    "Quality",
    "Why",
    "algorithms",
    "broken_algorithms",
    "create",
    "create_for_lane",
    "foreign_state",
    "lane_algorithms",
    "misplaced",
    "register",
]

Kind = Literal["vertex", "edge"]


class PartitionError(FreshetError):
    """A partitioner cannot do what was asked; the message says what, with the numbers."""


class CapacityError(PartitionError):
    """Nothing fits; the message says what is needed and what is free on every part."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Changes of one snapshot in the placement of nodes, and the parts of its insert events.

    ``node``, ``part`` and ``why`` are parallel arrays (n,), ordered by (node, part). NEW and MOVED set a node's home (its owner,
    in vertex lanes); REPLICATED adds a part to the node's set, and DEMOTED removes one; GONE ends all its placements (part is
    −1). A home is always in the node's set of parts.

    Attributes:
        node: int64 dense ids.
        part: int32 in [0, K), −1 for GONE.
        why: int8, a ``Why``.
        event_part: Edge partitioners: int32, one per row of the delta's events: the part of each insert, −1 for an insert
            discarded on arrival and for deletes. None for vertex partitioners.
    """

    node: Int64
    part: Int32
    why: Int8
    event_part: Int32 | None = None


@dataclass(frozen=True, slots=True)
class PartitionerSetting:
    """Everything that a partitioner is made from, besides its own options.

    Attributes:
        parts: K ≥ 1, or P of edge partitioners.
        seed: Of every draw, in [0, 2⁶³).
        window: w, snapshots that trainers look back, for partitioners that price storage.
    """

    parts: int
    seed: int = 0
    window: int = 4


@runtime_checkable
class OnlinePartitioner(Protocol):
    """Assigns the nodes (and events) of one snapshot after another, never looking ahead.

    Deterministic: the same seed, state and deltas give the same assignments. ``restore(state())`` in a fresh instance with the
    same options changes no later result.

    Attributes:
        name: Key in the registry and in configurations.
        kind: What it assigns.
        Options: Its own parameters, a section with defaults, descriptions and bounds.
        parts: K.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    Options: ClassVar[type[Section]]
    parts: int

    def __init__(self, setting: PartitionerSetting, options: Any) -> None: ...

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Partition snapshot ``delta.tau``; called once per snapshot, in order."""

    def home(self) -> Int32:
        """Home (owner) of every dense id so far, int32 (num_nodes,); −1 for none. A view."""

    def quality(self) -> Quality:
        """Quality of all snapshots so far."""

    def state(self) -> pa.Table:
        """The state that the next update depends on, including the running quality."""

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``."""


_OF_ALL = ("parts", "seed", "window")
_SEEDS = 2**63
"""Seeds are int64 in the kernels and in Arrow."""


def _require_partitioner(candidate: Any) -> None:
    """Check that an entry point is a partitioner's class."""
    if getattr(candidate, "kind", None) not in get_args(Kind):
        raise TypeError(f"{candidate!r} has no kind, vertex or edge")


_VERTEX = ("byte_lp", "distdy", "hash", "kl", "ldg", "load_aware", "metis")
_EDGE = ("hdrf", "need_cover", "sep")
PARTITIONERS: Registry[type[OnlinePartitioner]] = Registry(
    "partitioner",
    "params",
    "freshet.partitioners",
    (
        *(f"freshet_graph.stream.partition.vertex.{name}" for name in _VERTEX),
        *(f"freshet_graph.stream.partition.edge.{name}" for name in _EDGE),
    ),
    error=PartitionError,
    check=_require_partitioner,
)
register = PARTITIONERS.register
"""Class decorator: register a partitioner under its ``name``."""
algorithms = PARTITIONERS.all
broken_algorithms = PARTITIONERS.broken


def check_parts(whose: str, parts: int) -> None:
    """Refuse an impossible number of parts; ``whose`` names the partitioner in the sentence.

    Raises:
        PartitionError: K is below 1 or above ``MAX_PARTS``.
    """
    if parts < 1:
        raise PartitionError(f"{whose} needs at least one part, found parts = {parts}")
    if parts > MAX_PARTS:
        raise PartitionError(f"{whose} takes at most {MAX_PARTS} parts, found {parts}")


def create(
    name: str,
    given: Mapping[str, Any] | None = None,
    /,
    *,
    parts: int,
    seed: int = 0,
    window: int = 4,
    **params: Any,
) -> OnlinePartitioner:
    """Build the partitioner ``name``.

    Args:
        name: A key of ``algorithms()``.
        given: The algorithm's own parameters, as given by the user.
        parts: See ``PartitionerSetting``.
        seed: See ``PartitionerSetting``.
        window: See ``PartitionerSetting``.
        params: More of the algorithm's own parameters.

    Raises:
        PartitionError: The name or a parameter is unknown, or a value has another type or is out of range.
    """
    check_parts(name, parts)
    if not 0 <= seed < _SEEDS:
        raise PartitionError(f"{name} takes a seed from 0 to {_SEEDS - 1}, found {seed}")
    chosen = {**(given or {}), **params}
    for option in chosen.keys() & _OF_ALL:
        raise PartitionError(
            f"{option} is not a parameter of {name} but a separate option. Give it beside the parameters"
        )
    options = PARTITIONERS.options(name, chosen)
    return PARTITIONERS.find(name)(PartitionerSetting(parts, seed, window), options)


def create_for_lane(
    name: str, given: Mapping[str, Any], /, *, parts: int, seed: int, window: int
) -> OnlinePartitioner:
    """``create`` for a stream, which has no whole that a partitioner could see first.

    Raises:
        PartitionError: As of ``create``, or the partitioner needs a training part and ``given`` does not end it.
    """
    partitioner = create(name, given, parts=parts, seed=seed, window=window)
    if sees_training_part(name) and training_until_us(partitioner) is None:
        raise PartitionError(
            f"{name} needs its training part before its first snapshot, and a lane has no whole file. Give training_until in "
            f"its parameters, or choose one of {', '.join(sorted(lane_algorithms()))}"
        )
    return partitioner


def lane_algorithms() -> dict[str, type[OnlinePartitioner]]:
    """Those of ``algorithms()`` that a lane can have without a training part."""
    return {name: algorithm for name, algorithm in algorithms().items() if not sees_training_part(name)}


def sees_training_part(name: str) -> bool:
    """Whether the partitioner ``name`` has the option ``training_until``, and sees that part before its first update."""
    return "training_until" in PARTITIONERS.find(name).Options.model_fields


def training_until_us(partitioner: OnlinePartitioner) -> int | None:
    """The last time of the part that a partitioner sees before its first update, microseconds; None: it sees none."""
    return getattr(partitioner, "training_until_us", None)


def foreign_state(name: str, missing: KeyError) -> PartitionError:
    """The error for a state without an array, named by ``missing``, that the partitioner ``name`` needs."""
    return PartitionError(
        f"this is not a state of {name} as of this release, it has no {missing.args[0]}. Remove the lane's folder and let "
        "the stream job build it again"
    )


def misplaced(name: str, tau: int, fault: str, remedy: str) -> PartitionError:
    """The error for a wrong result of ``_place`` of the partitioner ``name`` at snapshot ``tau``."""
    return PartitionError(f"partitioner {name}, snapshot {tau}: {fault}. {remedy}")
