"""The writer of a lane: what it refuses, what it stores, and how it goes on after a failure."""

import errno
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from lane_stream import FEATURES, SECOND, SEGMENTS, lane, lane_files, make_store, manifests, random_events
from log_events import event

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import LaneManifest, LogHeader
from freshet_graph.stream.partition.interface import Assignment, PartitionError, Why
from freshet_graph.stream.partition.vertex.hash import Hash
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.errors import ConfigMissingError, LaneBusyError, MismatchError, StoreError
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.folder import FolderStaging
from freshet_graph.stream.store.verify.store import verify


def edges(*rows: tuple[int, int, int, float]) -> pa.Table:
    """Events (src, dst, second, weight); weight 0 is a delete; dst −1 a node event with that weight as features."""
    listed = [
        event(src, None, second * SECOND, features=[weight] * FEATURES)
        if dst < 0
        else event(src, dst, second * SECOND, op=1 if weight else -1, weight=weight)
        for src, dst, second, weight in rows
    ]
    return pa.Table.from_pylist(listed, schema=event_schema("int"))


def test_a_store_without_a_log_has_no_lanes(place):
    with pytest.raises(ConfigMissingError, match=r"log\.json"):
        LaneWriter(place, lane("hash"))
    assert list(place.iterdir()) == []


def test_an_unknown_algorithm_leaves_no_folder_behind(place):
    make_store(place)
    with pytest.raises(PartitionError, match="unknown partitioner 'magic'"):
        LaneWriter(place, lane("magic"))
    with pytest.raises(PartitionError, match="unknown key colour"):
        LaneWriter(place, lane("hash", params={"colour": 1}))
    assert not (place / "lanes").is_dir()


def test_a_second_writer_is_refused_with_the_name_of_the_first(place):
    make_store(place)
    with (
        LaneWriter(place, lane("hash"), writer_id="first"),
        pytest.raises(LaneBusyError, match=r"is being written by first\. Stop it"),
    ):
        LaneWriter(place, lane("hash"), writer_id="second")
    LaneWriter(place, lane("hash")).close()


@pytest.mark.parametrize(
    ("key", "value"),
    [("parts", 2), ("seed", 1), ("window", 9), ("edge_life", 3), ("algorithm", "random")],
)
def test_a_lane_never_changes_its_parameters(place, key, value):
    make_store(place, lane("hash"))
    with pytest.raises(MismatchError, match=rf"lane\.json has lanes\.{key} = .*a lane"):
        LaneWriter(place, Lane.model_validate({**lane("hash").model_dump(), key: value}))


def test_a_lane_without_a_snapshot_becomes_what_the_configuration_asks_for(place):
    make_store(place)
    LaneWriter(place, lane("hash", parts=2, window=9)).close()
    with LaneWriter(place, lane("hash", parts=5)) as writer:
        writer.catch_up()
    assert LaneReader(place, "hash").header.parts == 5
    assert verify(place).problems == []
    with pytest.raises(MismatchError, match=r"parts = 5.*a lane"):
        LaneWriter(place, lane("hash", parts=2))


def test_a_log_header_that_changed_while_all_was_empty_leaves_no_lane_behind(place):
    wrong = LogHeader(graph="g", interval_us=SECOND + 1, ids="int")
    with LogWriter.open(place, wrong):
        LaneWriter(place, lane("hash")).close()
        LaneWriter(place, lane("sep")).close()
    LogWriter.open(place, wrong.model_copy(update={"interval_us": SECOND})).close()
    with LaneWriter(place, lane("hash")) as writer:
        assert writer.header.interval_us == SECOND
    assert verify(place).problems == [], "a lane no longer configured does no harm"


def test_base_every_may_change_and_holds_from_then_on(place):
    make_store(place)
    calls = iter([False] * 4 + [True])
    with LaneWriter(place, lane("hash", base_every=3)) as writer:
        writer.catch_up(stop=lambda: next(calls))
    with LaneWriter(place, lane("hash", base_every=5)) as writer:
        writer.catch_up()
    assert [m.sequence for m in manifests(place, "hash") if m.base] == [3, 5]
    assert verify(place).problems == []


def test_it_writes_one_manifest_a_sealed_snapshot_and_tells_each(place):
    make_store(place)
    told: list[LaneManifest] = []
    with LaneWriter(place, lane("hash"), observer=told.append) as writer:
        assert writer.lag == 8
        calls = iter([False, False, True])
        assert writer.catch_up(stop=lambda: next(calls)) == 2
        assert writer.lag == 6
        assert writer.catch_up() == 6
        assert writer.catch_up() == 0
        assert told == writer.manifests == manifests(place, "hash")
    assert [manifest.sequence for manifest in told] == list(range(8))
    assert [manifest.base is not None for manifest in told] == [n in (3, 6) for n in range(8)]
    assert all(manifest.num_events == 60 for manifest in told)


def test_a_closed_writer_writes_no_more(place):
    make_store(place)
    writer = LaneWriter(place, lane("hash"))
    writer.close()
    with pytest.raises(StoreError, match="is closed"):
        writer.catch_up()


def test_only_the_newest_two_states_are_kept(tmp_path):
    make_store(tmp_path, lane("hash"))
    written = [m.state.path for m in manifests(tmp_path, "hash") if m.state]
    assert len(written) > 2
    assert sorted(f"state/{p.name}" for p in (tmp_path / "lanes/hash/state").iterdir()) == sorted(
        written[-2:]
    )


def test_states_and_bases_come_however_little_happens(tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_graph.stream.store.lane.writer.STATE_SNAPSHOTS", 4)
    monkeypatch.setattr("freshet_graph.stream.store.lane.writer.BASE_STEPS", 2)
    many = [(node, node + 1, 0, 1.0) for node in range(200)]
    make_store(tmp_path, lane("hash"), events=edges(*many, *((1, 300 + s, s, 1.0) for s in range(1, 14))))
    found = manifests(tmp_path, "hash")
    assert [m.sequence for m in found if m.state] == [0, 4, 8, 12]
    assert [m.sequence for m in found if m.base] == [3, 9]
    with LaneWriter(tmp_path, lane("hash")) as writer:  # one that opens the lane counts on from there
        assert writer.catch_up() == 0
    assert verify(tmp_path).problems == []


def test_a_full_disk_loses_nothing_and_the_next_try_goes_on(tmp_path):
    whole = make_store(tmp_path / "whole", lane("sep"))
    store = make_store(tmp_path / "store")
    full = OSError(errno.ENOSPC, "No space left on device")
    with LaneWriter(store, lane("sep")) as writer:
        for passes in range(8):
            tries = iter([None] * passes)
            real = FolderStaging.finish

            def finish(staging, tries=tries, real=real):
                if next(tries, full) is full:
                    raise full
                real(staging)

            with mock.patch.object(FolderStaging, "finish", finish), pytest.raises(OSError, match="No space"):
                writer.catch_up()
                pytest.fail("nothing was left to write")
            if len(writer.manifests) >= 6:
                break
        writer.catch_up()
    assert lane_files(store, "sep") == lane_files(whole, "sep")


def test_a_restart_sweeps_what_no_manifest_names_and_nothing_else(tmp_path):
    make_store(tmp_path, lane("hash"))
    root = tmp_path / "lanes/hash"
    before = lane_files(tmp_path, "hash")
    (root / "snapshots/99").mkdir()
    (root / "snapshots/99/edges.arrow").write_bytes(b"half")
    (root / "commits/99.json.tmp").write_bytes(b"{")
    (root / "state/99.arrow").write_bytes(b"half")
    (root / "notes.txt").write_text("mine")
    LaneWriter(tmp_path, lane("hash")).close()
    assert lane_files(tmp_path, "hash") == before
    assert not (root / "commits/99.json.tmp").exists()
    assert (root / "notes.txt").exists()


def test_a_node_that_stays_stores_only_the_segments_that_changed(place):
    """One part: at 1 two of six values change, in two of three segments; at 2 nothing does."""
    make_store(place, lane("hash", parts=1), events=edges((1, 2, 0, 1.0), (1, -1, 0, 3.0)))
    with LogWriter.open(place, LaneReader(place, "hash").log.header) as log:
        sparse = edges((1, -1, 1, 3.0)).set_column(
            5, event_schema("int").field("features"), pa.array([[7.0, 8.0]], pa.list_(pa.float32()))
        )
        sparse = sparse.set_column(6, event_schema("int").field("feature_offset"), pa.array([1], pa.int32()))
        log.commit(seal=[(1, sparse), (2, edges((1, -1, 2, 7.0), (1, 2, 2, 1.0)))])
    with LaneWriter(place, lane("hash", parts=1)) as writer:
        writer.catch_up()
    reader = LaneReader(place, "hash")
    first, second, third = (reader.changes(manifest, [0]) for manifest in reader.manifests)
    assert SEGMENTS == 3
    assert first.segment.tolist() == [0, 1, 2]
    assert (second.segment_node.tolist(), second.segment.tolist()) == ([0, 0], [0, 1])
    assert second.values.tolist() == [[3.0, 7.0], [8.0, 3.0]]
    assert third.segment.tolist() == [0, 1, 2]
    assert len(second.keys) == len(third.keys) == len(second.node) == 0


def test_bytes_are_counted_with_their_index_columns(place):
    """Two nodes and one pair in one part, one of them with features; then one pair goes and all with it: no pair is listed."""
    events = edges((1, 2, 0, 1.0), (1, -1, 0, 3.0), (1, 2, 1, 0.0))
    make_store(place, lane("hash", parts=1), events=events)
    first, second = (manifest.parts[0] for manifest in manifests(place, "hash"))
    assert (first.nodes, first.edges) == (2, 1)
    assert first.bytes == 2 * 13 + 1 * 21 + 3 * (8 + 4 + 2 * 4)
    assert first.full_bytes == 2 * 8 + 1 * 20 + 1 * FEATURES * 4
    assert (second.nodes, second.edges, second.bytes, second.full_bytes) == (0, 0, 2 * 13, 0)


def test_a_partitioner_that_forgets_a_node_is_found_out(place):
    nothing = Assignment(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int8))
    make_store(place)
    with (
        LaneWriter(place, lane("hash")) as writer,
        mock.patch.object(Hash, "update", lambda self, delta: nothing),
        pytest.raises(PartitionError, match="without an owner, such as node"),
    ):
        writer.catch_up()
    assert manifests(place, "hash") == []


def test_edge_lanes_tell_the_part_of_every_edge_event_and_keep_discarded_pairs(place):
    make_store(place, lane("sep", params={"hubs": 0.0}), events=random_events(nodes=30))
    reader = LaneReader(place, "sep")
    discarded = 0
    for manifest in reader.manifests:
        events = reader.log.events(manifest.tau)
        op = events["op"].to_numpy()
        part = reader.event_parts(manifest)
        assert part is not None and part.dtype == np.int32
        assert len(part) == int((op != 0).sum())
        assert (part[op[op != 0] < 0] == -1).all()
        discarded += int((part[op[op != 0] > 0] == -1).sum())
        assert manifest.discarded is not None
        stored = sum(summary.edges for summary in manifest.parts) + manifest.discarded.edges
        assert stored == manifest.live_edges
    assert discarded > 0
    assert Why.NEW in reader.changes(reader.manifests[0], [0, 1, 2]).why


def test_a_lane_with_a_training_part_begins_once_the_log_has_sealed_it(tmp_path):
    """Whether the log grew meanwhile, and whether a state is lost, its files are those of a lane that came last."""
    whole, growing = make_store(tmp_path / "whole"), tmp_path / "growing"
    two_pass = lane("sep-two-pass", params={"training_until": 4.5, "hubs": 0.2})
    header, events = LogReader(whole).header, random_events()
    tau = events["t"].to_numpy() // SECOND

    def seal(*snapshots: int) -> None:
        with LogWriter.open(growing, header) as log:
            log.commit(seal=[(k, events.filter(pa.array(tau == k))) for k in snapshots])

    def caught_up(store: Path) -> int:
        with LaneWriter(store, two_pass) as writer:
            return writer.catch_up()

    seal(0, 1, 2, 3)
    with LaneWriter(growing, two_pass) as writer:
        assert (writer.catch_up(), writer.lag) == (0, 4)
        seal(4)
        assert writer.catch_up() == 5
    seal(5, 6)
    for state in (growing / "lanes" / "sep-two-pass").rglob("*state*.arrow"):
        state.write_bytes(b"lost")
    assert caught_up(growing) == 2
    seal(7)
    assert (caught_up(growing), caught_up(whole)) == (1, 8)
    ours, theirs = (
        {path: content for path, content in lane_files(store, "sep-two-pass").items() if "state" not in path}
        for store in (growing, whole)
    )
    assert ours == theirs
    assert ours


def test_a_training_part_that_the_log_has_dropped_is_refused(tmp_path):
    store = make_store(tmp_path, lane("hash"))
    compact(store, Keep(snapshots=3))
    with pytest.raises(PartitionError, match="needs its whole training part, but the log has dropped"):
        LaneWriter(store, lane("sep-two-pass", params={"training_until": 4.5}))
