"""A snapshot as a graph of pandas, NetworkX, DGL or PyG, for notebooks and other trainers."""

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.errors import MissingLibraryError
from freshet_graph.schemas.store import LaneManifest, SealedSnapshot
from freshet_graph.stream.arrays.kinds import Float32, Int32, Int64
from freshet_graph.stream.snapshots.graph import LiveGraph
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
        pandas = package("pandas", "to_pandas")
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
        graph = package("networkx", "to_networkx").DiGraph(tau=self.tau, end_us=self.end_us)
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
        dgl, torch = package("dgl", "to_dgl"), package("torch", "to_dgl")
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
        data, torch = package("torch_geometric.data", "to_pyg"), package("torch", "to_pyg")
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


def _from_log(store: str | Place, as_of: AsOf | None) -> SnapshotGraph:
    log = LogReader(store)
    number = _number(log, as_of, log.snapshots, str(store))
    header = log.header
    graph = LiveGraph(node_features=header.node_features, segments=header.segments)
    base = log.base()
    for tau, events in groups(base, None) if base is not None else ():
        graph.apply(tau, events)
    for snapshot in log.snapshots[: number + 1]:
        graph.apply(snapshot.tau, log.events(snapshot.tau))
    last = log.snapshots[number]
    pairs = graph.pairs()
    features = np.zeros((last.num_nodes, header.node_features), np.float32)
    known = min(last.num_nodes, graph.num_nodes)  # perhaps no kept event names the newest ids
    features[:known] = graph.features(np.arange(known, dtype=np.int64))
    return SnapshotGraph(
        tau=last.tau,
        end_us=(last.tau + 1) * header.interval_us,
        ids=log.external_ids()[: last.num_nodes].combine_chunks(),
        src=pairs.src,
        dst=pairs.dst,
        weight=pairs.weight.copy(),
        features=features,
    )


def _from_lane(store: str | Place, name: str, window: int, as_of: AsOf | None) -> list[SnapshotGraph]:
    lane = LaneReader(store, name)
    number = _number(lane.log, as_of, lane.manifests, f"lane {name} of {store}")
    view = WindowView(lane, window)
    view.advance(lane.manifests[number])
    ids, graphs = lane.log.external_ids().combine_chunks(), []
    for tau in view.taus:
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


def package(name: str, wanted_by: str) -> ModuleType:
    """Import an optional library; the error names the method that needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".", maxsplit=1)[0]
        raise MissingLibraryError(
            f"{wanted_by}() needs {package}, which can't be imported ({error}). Run pip install {package}"
        ) from error
