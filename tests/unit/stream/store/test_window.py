"""The window view, in a folder or a bucket: what it tells about moves and times, what it refuses, and what it costs."""

import numpy as np
import pyarrow as pa
import pytest
from lane_stream import FEATURES, SECOND, lane, live_nodes, make_store, manifests, random_events
from placed import anew, write

from freshet_graph.stream.store.errors import CorruptError, RetainedError
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.window.view import WindowView


@pytest.fixture(scope="module")
def store(places):
    return make_store(places.new(), lane("distdy"), lane("sep"))


@pytest.fixture(scope="module")
def still(places):
    """A large graph, then eleven snapshots that change one pair and no feature."""
    large = random_events(snapshots=1, a_snapshot=4000, nodes=400)
    rows = [{"op": 1, "src": 0, "dst": 500 + tau, "t": tau * SECOND, "weight": 1.0} for tau in range(1, 12)]
    small = pa.Table.from_pylist(rows, schema=large.schema)
    return make_store(places.new(), lane("hash"), events=pa.concat_tables([large, small]))


def view_of(store, name, window=3, parts=None, upto=None):
    reader = LaneReader(store, name)
    view = WindowView(reader, window, parts)
    for manifest in reader.manifests[:upto]:
        view.advance(manifest)
    return view


def test_a_window_holds_its_last_snapshots_oldest_first(store):
    view = view_of(store, "distdy", 3)
    taus = [manifest.tau for manifest in manifests(store, "distdy")]
    assert view.taus == taus[-3:]
    assert view.num_nodes == manifests(store, "distdy")[-1].num_nodes
    assert len(view.owner(view.taus[0])) == manifests(store, "distdy")[-3].num_nodes


def test_a_view_that_begins_late_or_jumps_equals_one_that_saw_everything(store):
    everything = view_of(store, "sep", 3)
    reader = LaneReader(store, "sep")
    jumping = WindowView(reader, 3)
    for manifest in (reader.manifests[0], reader.manifests[5], reader.manifests[7]):
        jumping.advance(manifest)
    ids = np.arange(everything.num_nodes)
    assert jumping.taus == everything.taus
    for tau in everything.taus:
        np.testing.assert_array_equal(jumping.features(ids, tau), everything.features(ids, tau))
        np.testing.assert_array_equal(jumping.csr(tau).indices, everything.csr(tau).indices)
        np.testing.assert_array_equal(jumping.owner(tau), everything.owner(tau))


def test_it_cannot_go_back_nor_read_outside_of_its_window(store):
    reader = LaneReader(store, "distdy")
    view = WindowView(reader, 2)
    with pytest.raises(RetainedError, match="empty until the first advance"):
        view.csr(0)
    view.advance(reader.manifests[4])
    with pytest.raises(ValueError, match="it can't go back to 4"):
        view.advance(reader.manifests[4])
    with pytest.raises(RetainedError, match=r"snapshot 1 is not in the window of 2: it holds \[3, 4\]"):
        view.features(np.array([0]), 1)
    with pytest.raises(ValueError, match="not negative, found -1"):
        view.features(np.array([-1]), 4)


@pytest.mark.parametrize(
    ("window", "parts", "words"), [(0, None, "at least one"), (2, [3], "parts 0 to 2"), (2, [], "asked for")]
)
def test_windows_and_parts_that_cannot_be_are_refused(store, window, parts, words):
    with pytest.raises(ValueError, match=words):
        WindowView(LaneReader(store, "distdy"), window, parts)


def test_the_parts_of_a_vertex_lane_share_its_nodes_and_cover_its_pairs(store):
    views = [view_of(store, "distdy", 2, [k]) for k in range(3)]
    whole = view_of(store, "distdy", 2)
    for tau in whole.taus:
        nodes = np.concatenate([live_nodes(view, tau) for view in views])
        assert sorted(nodes.tolist()) == live_nodes(whole, tau).tolist()
        for k, view in enumerate(views):
            assert (view.owner(tau)[live_nodes(view, tau)] == k).all()
            for v in live_nodes(view, tau).tolist():  # a part knows all neighbours of its own nodes
                mine, all_of_them = view.csr(tau), whole.csr(tau)
                row = slice(mine.indptr[v], mine.indptr[v + 1])
                row_of_all = slice(all_of_them.indptr[v], all_of_them.indptr[v + 1])
                assert mine.indices[row].tolist() == all_of_them.indices[row_of_all].tolist()
        vectors = sum(view.features(live_nodes(whole, tau), tau) for view in views)
        np.testing.assert_array_equal(vectors, whole.features(live_nodes(whole, tau), tau))


def test_memory_grows_with_the_changes_not_with_the_window(still):
    one, many = (view_of(still, "hash", w) for w in (1, 10))
    assert len(many.taus) >= 8
    assert many.memory_bytes < 1.1 * one.memory_bytes


def test_events_are_views_of_the_mapped_log_where_it_has_edge_events_only(place):
    events = random_events(snapshots=2)
    events = events.filter(events["dst"].is_valid())
    build_store(events, place, interval_us=SECOND, lanes=[lane("hash")])
    view = view_of(place, "hash")
    columns = view.events(0)
    assert not columns.src.flags.owndata
    assert not columns.src.flags.writeable
    assert view.events(0) is columns


def test_features_of_edges_are_zeros_where_an_event_has_none(place):
    events = random_events(snapshots=1, a_snapshot=3)
    lists = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32()))
    events = events.set_column(0, events.schema.field("op"), pa.array([1, 1, 1], pa.int8()))
    events = events.set_column(2, events.schema.field("dst"), pa.array([1, 2, 3]))
    events = events.set_column(5, events.schema.field("features"), lists)
    build_store(events, place, interval_us=SECOND, lanes=[lane("hash")], edge_features=2)
    assert view_of(place, "hash").events(0).features.tolist() == [[1, 2], [0, 0], [3, 4]]


def test_a_view_survives_a_file_that_is_damaged_and_restored(place):
    made = make_store(place, lane("hash"), events=random_events(snapshots=5))
    with anew(made) as store:
        view = view_of(store, "hash", 2, upto=4)
        manifest = LaneReader(store, "hash").manifests[4]
        view.lane.refresh()
        path = view.lane.root / manifest.edges.path
        content = path.read_bytes()
        write(path, content[:-1])
        with pytest.raises(CorruptError, match="edges"):
            view.advance(manifest)
        assert view.taus == [2, 3]
        write(path, content)
        view.advance(manifest)
        assert view.taus == [3, 4]
        everything = view_of(store, "hash", 2, upto=5)
        ids = np.arange(view.num_nodes)
        assert view.features(ids, 3).shape == (view.num_nodes, FEATURES)
        np.testing.assert_array_equal(view.features(ids, 3), everything.features(ids, 3))
