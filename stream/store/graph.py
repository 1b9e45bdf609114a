"""A snapshot as a graph of pandas, NetworkX, DGL or PyG, for notebooks and other trainers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.store import LaneManifest, SealedSnapshot
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int32, Int64
from freshet_graph.stream.optional import package
from freshet_graph.stream.snapshots.node_features import NodeFeatures
from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys
from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.errors import RetainedError
from freshet_graph.stream.store.files.records import Numbered
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.index import groups
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.undisturbed import undisturbed
from freshet_graph.stream.store.window.view import WindowView

if TYPE_CHECKING:
    import networkx
    import pandas


class Frames(NamedTuple):
    """Nodes and edges of snapshots as pandas data frames, one per row.

    Attributes:
        nodes: ``tau`` int64, ``t`` datetime64[us, UTC] (the snapshot's end), ``node`` int64 dense id, ``id``, ``owner`` int32
            if read from a lane, ``features`` (arrays of F float32) if F > 0.
        edges: ``tau``, ``t``, ``src`` and ``dst`` (external ids), ``src_node`` and ``dst_node`` int64, ``weight`` float32.
    """

    nodes: "pandas.DataFrame"
    edges: "pandas.DataFrame"


@dataclass(frozen=True, slots=True)
class SnapshotGraph:
    """The live graph after a snapshot, directed. Node i is dense id i, with or without edges.

    Attributes:
        tau: Interval index.
        end_us: End of the interval (exclusive), µs since the epoch.
        ids: External ids, int64 or string, shape (N,).
        src: int64 dense ids, shape (E,), sorted by (src, dst); self-loops included.
        dst: int64 dense ids, shape (E,).
        weight: float32, shape (E,).
        features: float32, shape (N, F); zeros for nodes without features and, in a lane, for nodes without a home part.
        owner: int32 home part of each node, −1 for none, shape (N,); None without a lane.
    """

    tau: int
    end_us: int
    ids: pa.Array
    src: Int64
    dst: Int64
    weight: Float32
    features: Float32
    owner: Int32 | None = None

    @property
    def num_nodes(self) -> int:
        """Dense ids in use."""
        return len(self.ids)

    def to_pandas(self) -> Frames:
        """Nodes and edges as data frames: N and E rows.

        Raises:
            MissingLibraryError: pandas isn't installed.
        """
        pandas = package("pandas", "to_pandas()")
        when = {"tau": self.tau, "t": pandas.Timestamp(self.end_us, unit="us", tz="UTC").as_unit("us")}
        ids = self.ids.to_pandas()
        nodes = pandas.DataFrame({**when, "node": np.arange(self.num_nodes), "id": ids})
        if self.owner is not None:
            nodes["owner"] = self.owner
        if self.features.shape[1]:
            nodes["features"] = list(self.features)
        ends = {"src_node": self.src, "dst_node": self.dst, "weight": self.weight}
        named = {name: ids.to_numpy()[node] for name, node in (("src", self.src), ("dst", self.dst))}
        return Frames(nodes, pandas.DataFrame({**when, **named, **ends}))

    def to_networkx(self) -> "networkx.DiGraph[Any]":
        """A ``networkx.DiGraph`` over external ids.

        Returns:
            The graph has ``tau`` and ``end_us``; nodes have ``node`` (dense id), ``features`` (F,) if F > 0 and ``owner``
            if read from a lane; edges have ``weight``.

        Raises:
            MissingLibraryError: networkx isn't installed.
        """
        graph = package("networkx", "to_networkx()").DiGraph(tau=self.tau, end_us=self.end_us)
        ids = self.ids.to_pylist()
        for node, name in enumerate(ids):
            graph.add_node(name, node=node)
            if self.features.shape[1]:
                graph.nodes[name]["features"] = self.features[node]
            if self.owner is not None:
                graph.nodes[name]["owner"] = int(self.owner[node])
        graph.add_weighted_edges_from(
            (ids[u], ids[v], w)
            for u, v, w in zip(self.src.tolist(), self.dst.tolist(), self.weight.tolist(), strict=True)
        )
        return graph

    def to_dgl(self) -> Any:
        """A ``dgl.DGLGraph`` over dense ids.

        Returns:
            N nodes and E edges with ``edata["weight"]`` float32 (E,), ``ndata["feat"]`` float32 (N, F) if F > 0, and
            ``ndata["owner"]`` int32 (N,) if read from a lane. DGL keeps no attributes of a graph, so ``tau`` stays here.

        Raises:
            MissingLibraryError: dgl or torch isn't installed.
        """
        dgl, torch = package("dgl", "to_dgl()", "'freshet-graph[dgl]'"), package("torch", "to_dgl()")
        graph = dgl.graph((torch.from_numpy(self.src), torch.from_numpy(self.dst)), num_nodes=self.num_nodes)
        graph.edata["weight"] = torch.from_numpy(self.weight)
        if self.features.shape[1]:
            graph.ndata["feat"] = torch.from_numpy(self.features)
        if self.owner is not None:
            graph.ndata["owner"] = torch.from_numpy(self.owner)
        return graph

    def to_pyg(self) -> Any:
        """A ``torch_geometric.data.Data`` over dense ids.

        Returns:
            It has ``edge_index`` int64 (2, E), ``edge_weight`` float32 (E,), ``num_nodes``, ``tau``, ``end_us``, ``x``
            float32 (N, F) if F > 0, and ``owner`` int32 (N,) if read from a lane.

        Raises:
            MissingLibraryError: torch_geometric or torch isn't installed.
        """
        data, torch = package("torch_geometric.data", "to_pyg()"), package("torch", "to_pyg()")
        more = {"x": torch.from_numpy(self.features)} if self.features.shape[1] else {}
        if self.owner is not None:
            more["owner"] = torch.from_numpy(self.owner)
        return data.Data(
            edge_index=torch.from_numpy(np.stack([self.src, self.dst])),
            edge_weight=torch.from_numpy(self.weight),
            num_nodes=self.num_nodes,
            tau=self.tau,
            end_us=self.end_us,
            **more,
        )


def read_graph(store: str | Place, *, lane: str | None = None, as_of: AsOf | None = None) -> SnapshotGraph:
    """The live graph of a store after one of its snapshots.

    Args:
        store: Folder of the store.
        lane: Read from this lane, with its edge life and the parts of its nodes. The cost is what changed since its last
            base. None: read all events of the log; edges live until they are deleted.
        as_of: The snapshot; None: the newest.

    Raises:
        ConfigMissingError: The store or the lane does not exist.
        RetainedError: No snapshot is that old, or it is no longer kept.
        CorruptError, FormatVersionError: A file is damaged, or from another release.
    """
    if lane is not None:
        return read_graphs(store, lane, 1, as_of=as_of)[0]
    return undisturbed(store, lambda: _from_log(store, as_of))


def read_graphs(
    store: str | Place, lane: str, window: int, *, as_of: AsOf | None = None
) -> list[SnapshotGraph]:
    """The live graphs of the last snapshots of a lane, oldest first. They cost one graph and the changes since.

    Args:
        store: Folder of the store.
        lane: Read from this lane, with its edge life and the parts of its nodes.
        window: w ≥ 1, the number of snapshots; fewer if the lane has no more.
        as_of: The newest of them; None: the lane's newest.

    Raises:
        ValueError: ``window`` is below 1.
        ConfigMissingError, RetainedError, CorruptError, FormatVersionError: As for ``read_graph``.
    """
    return undisturbed(store, lambda: _from_lane(store, lane, window, as_of))


def _number(
    log: LogReader, as_of: AsOf | None, items: Numbered[SealedSnapshot] | Numbered[LaneManifest], of: str
) -> int:
    """The number of the requested snapshot among those kept."""
    first, end = items.first, len(items)
    if end == first:
        raise RetainedError(f"{of} has no snapshots yet")
    number = end - 1 if as_of is None else log.count(as_of) - 1
    if first <= number < end:
        return number
    has = f"it has {log.snapshots[first].tau} to {log.snapshots[end - 1].tau}"
    if number >= end:
        raise RetainedError(f"{of} has not come to snapshot {log.snapshots[number].tau}; {has}")
    raise RetainedError(f"{of} has no snapshot of that time or before; {has}")


class LatestInserts:
    """The live pairs of a log without an edge life: those whose last event is an insert, with its weight.

    Events are merged into the sorted pairs when they are as many, so each costs O(log pairs), amortised.
    """

    def __init__(self) -> None:
        self._keys: Int64 = np.empty(0, np.int64)
        self._weight: Float32 = np.empty(0, np.float32)
        self._waiting: list[tuple[Int64, Float32, Bool]] = []
        self._count = 0

    def add(self, events: pa.Table) -> None:
        """Take the edge events of the next snapshot, ``log_event_schema`` in log order."""
        op, src, dst, weight = (events[name].to_numpy() for name in ("op", "src_node", "dst_node", "weight"))
        edges = op != Op.NODE
        self._waiting.append((pair_keys(src[edges], dst[edges]), weight[edges], op[edges] == Op.INSERT))
        self._count += len(self._waiting[-1][0])
        if self._count > max(_MERGED_EVENTS, len(self._keys)):
            self._merge()

    def pairs(self) -> tuple[Int64, Float32]:
        """Keys of the live pairs, int64 (E,) ascending, and their weights, float32 (E,)."""
        self._merge()
        return self._keys, self._weight

    def _merge(self) -> None:
        live = (self._keys, self._weight, np.ones(len(self._keys), np.bool_))
        keys, weight, inserted = (
            np.concatenate(columns) for columns in zip(live, *self._waiting, strict=True)
        )
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        last &= inserted[order]
        self._keys, self._weight = keys[last], weight[order][last]
        self._waiting, self._count = [], 0


_MERGED_EVENTS = 1 << 20


def _from_log(store: str | Place, as_of: AsOf | None) -> SnapshotGraph:
    log = LogReader(store)
    number = _number(log, as_of, log.snapshots, str(store))
    header = log.header
    last = log.snapshots[number]
    latest, features = LatestInserts(), NodeFeatures(header.node_features, header.segments)
    features.grow(last.num_nodes)
    base = log.base()
    for _, events in groups(base, None) if base is not None else ():
        latest.add(events)
        features.apply(events)
    for snapshot in log.snapshots[: number + 1]:
        events = log.events(snapshot.tau)
        latest.add(events)
        features.apply(events)
    keys, weight = latest.pairs()
    src, dst = split_keys(keys)
    return SnapshotGraph(
        tau=last.tau,
        end_us=(last.tau + 1) * header.interval_us,
        ids=log.external_ids()[: last.num_nodes].combine_chunks(),
        src=src,
        dst=dst,
        weight=weight,
        features=features.values[: last.num_nodes],
    )


def _from_lane(store: str | Place, name: str, window: int, as_of: AsOf | None) -> list[SnapshotGraph]:
    lane = LaneReader(store, name)
    number = _number(lane.log, as_of, lane.manifests, f"lane {name} of {store}")
    if window < 1:
        raise ValueError(f"a window holds at least one snapshot, found {window}")
    view = WindowView(lane, 1)  # advanced, so that no snapshot needs the values which later ones replace
    ids, graphs = lane.log.external_ids().combine_chunks(), []
    for sequence in range(max(lane.manifests.first, number - window + 1), number + 1):
        view.advance(lane.manifests[sequence])
        (tau,) = view.taus
        src, dst, weight = view.pairs(tau)
        owner = view.owner(tau)
        graphs.append(
            SnapshotGraph(
                tau=tau,
                end_us=(tau + 1) * lane.log.header.interval_us,
                ids=ids[: len(owner)],
                src=src,
                dst=dst,
                weight=weight,
                features=view.features(np.arange(len(owner), dtype=np.int64), tau),
                owner=owner,
            )
        )
    return graphs
