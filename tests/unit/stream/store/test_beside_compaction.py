"""Readers, writers and verify while snapshots are dropped under them, at the moments where that hurts most."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog
from compacted import EVENTS, HEADER, SECOND, catch_up, grown, indexed, labelled, seal
from lane_stream import lane
from log_events import stream_config
from meanwhile import dropping, with_after, with_before
from placed import files_of, flipped, problems_of, write

import freshet_graph.stream.store.log.commits
import freshet_graph.stream.store.log.ids
import freshet_graph.stream.store.log.writer
from freshet_graph.stream.job import open_log
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.errors import CorruptError, MissingError, RetainedError
from freshet_graph.stream.store.files.sweep import COMPACTION, lock_folder
from freshet_graph.stream.store.graph import read_graph
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.reader import LaneReader, manifest_taus
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.commits import CommitChain
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.store_events import store_events
from freshet_graph.stream.store.verify import lane as verify_lane
from freshet_graph.stream.store.verify import log as verify_log

LANES = (lane("distdy"), lane("sep", edge_life=2))
SNAPSHOTS, KEPT = 12, 9


@pytest.fixture(scope="module")
def compacted(places):
    return indexed(places.new(), *LANES, end=SNAPSHOTS, kept=KEPT)


@pytest.fixture
def store(compacted, places):
    return places.copy(compacted)


@pytest.mark.parametrize(
    ("module", "name"), [(verify_log, "verify_indexes"), (verify_lane, "_index")], ids=["log", "lane"]
)
def test_verify_looks_again_while_snapshots_are_dropped_under_it(store, monkeypatch, module, name):
    """More often than once: each look but the last finds its index replaced, and the files gone that it named."""
    looks = with_after(monkeypatch, module, name, dropping(store, 8, 7, 6, 5, 4))
    assert problems_of(store) == []
    if isinstance(store, Path):
        assert len(looks) >= 6
        assert LogReader(store).snapshots.first == SNAPSHOTS - 4
    else:  # what a look has fetched ahead, the next ones have
        assert len(looks) >= 2


@pytest.mark.parametrize("part", ["log", "lanes/distdy"])
def test_damage_is_told_whole_though_the_store_is_compacted_all_the_while(store, monkeypatch, part):
    name = "events.arrow" if part == "log" else "edges.arrow"
    files = [
        path
        for found, path in files_of(store).items()
        if found.startswith(f"{part}/snapshots/") and name in found
    ][-2:]
    for path in files:
        content = path.read_bytes()
        write(path, flipped(content, len(content) // 2))
    module, function = (verify_log, "verify_indexes") if part == "log" else (verify_lane, "_files")
    looks = with_after(
        monkeypatch, module, function, lambda: compact(store, Keep(snapshots=KEPT), always=True)
    )
    problems = problems_of(store)
    assert [any(str(path) in problem for problem in problems) for path in files] == [True, True]
    assert len(looks) <= 4 * SNAPSHOTS


def test_a_lane_goes_on_from_its_state_though_older_snapshots_go_while_it_is_opened(store, monkeypatch):
    seal(store, SNAPSHOTS, SNAPSHOTS + 2)
    for chosen in LANES:
        with pytest.MonkeyPatch.context() as patch:
            opened = with_before(patch, LaneWriter, "_restored", dropping(store, 4))
            with LaneWriter(store, chosen) as writer:
                assert writer.catch_up() == 2
            assert opened
    assert problems_of(store) == []


def test_a_lanes_snapshots_that_were_dropped_since_are_no_longer_kept(store):
    reader = LaneReader(store, "distdy")
    first = reader.manifests.first
    compact(store, Keep(snapshots=4), always=True)
    now = LaneReader(store, "distdy").manifests
    assert now.first > first
    with pytest.raises(
        RetainedError, match=f"snapshot number {first}[.] A reader can start from number {now.first}"
    ):
        reader.manifests[first]
    assert [m.tau for m in reader.manifests] == [m.tau for m in now]
    assert [m.tau for m in reversed(reader.manifests)] == [m.tau for m in reversed(now)]
    with pytest.raises(RetainedError, match=f"snapshot number {first}[.] A reader"):
        reader.manifests[first:]  # a list with a hole would pass for all


def test_a_lanes_manifest_that_nobody_dropped_is_missing_all_the_same(store):
    reader = LaneReader(store, "distdy")
    tau = int(reader.rows.taus[2])
    files_of(store)[f"lanes/distdy/commits/{tau}.json"].unlink()
    with pytest.raises(Exception, match=f"{tau}.json does not exist"):
        reader.manifests[reader.manifests.first + 2]


READINGS: dict[str, Callable[[Place], Any]] = {
    "graph": lambda store: read_graph(store).features.tobytes(),
    "events": lambda store: store_events(store).events.num_rows,
    "inspect": lambda store: inspect(store)["events"],
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("method", ["base", "events"])
def test_what_reads_a_whole_log_begins_again_where_snapshots_go_meanwhile(
    store, monkeypatch, reading, method
):
    """A bucket's files that this machine has fetched before stay readable: what was there at first is as right."""
    compact(store, remove=["distdy"])  # its counts would do for inspect
    before = READINGS[reading](store)
    with monkeypatch.context() as patch:
        calls = with_before(patch, LogReader, method, dropping(store, 7, 6, 5))
        found = READINGS[reading](store)
    after = READINGS[reading](store)
    if isinstance(store, Path):
        assert len(calls) > 3
        assert found == after
    else:
        assert found in (before, after)


def test_a_reader_that_stays_open_has_external_ids_in_few_files_and_reads_each_once(store):
    log, addresses, named = LogReader(store), [], []
    for number in range(SNAPSHOTS, SNAPSHOTS + 7):
        seal(store, number, number + 1)
        compact(store, Keep(snapshots=4), always=True)
        log.refresh()
        ids = log.external_ids()
        assert ids.equals(LogReader(store).external_ids())
        assert ids.num_chunks == len(log.index.ids)
        before, addresses = addresses, [piece.buffers()[1].address for piece in ids.chunks]
        files, named = named, [file.path for file in log.index.ids]
        assert [a for a, path in zip(before, files, strict=True) if path in named] == [
            a for a, path in zip(addresses, named, strict=True) if path in files
        ]


def test_a_writer_forgets_what_was_dropped_beside_it(places, monkeypatch):
    monkeypatch.setattr(freshet_graph.stream.store.log.writer, "LOOK_EVERY", 3)
    store, tau = places.new(), EVENTS["t"].to_numpy() // SECOND
    with LogWriter.open(store, HEADER) as log:
        for number in range(10):
            log.commit(seal=[(number, EVENTS.filter(pa.array(tau == number)))], **labelled(number))
            compact(store, Keep(snapshots=2), always=True)
        assert (log.snapshots.first, len(log.snapshots)) == (6, 10)
        assert LogReader(store).snapshots.first == 8
    assert problems_of(store) == []


def test_a_writer_commits_on_though_it_cannot_see_what_was_dropped(places, monkeypatch):
    monkeypatch.setattr(freshet_graph.stream.store.log.writer, "LOOK_EVERY", 1)
    store, tau = places.new(), EVENTS["t"].to_numpy() // SECOND
    with LogWriter.open(store, HEADER) as log:
        with monkeypatch.context() as patch:
            with_before(patch, freshet_graph.stream.store.log.commits, "newest_index", out_of_reach)
            for number in range(6):
                log.commit(seal=[(number, EVENTS.filter(pa.array(tau == number)))], **labelled(number))
        compact(store, Keep(snapshots=2), always=True)
        log.commit(seal=[(6, EVENTS.filter(pa.array(tau == 6)))], **labelled(6))
        assert log.snapshots.first == 4
    assert problems_of(store) == []


def out_of_reach() -> None:
    raise OSError("the store does not answer")


def test_external_ids_of_an_index_stay_where_those_after_it_are_put_together(store, monkeypatch):
    monkeypatch.setattr(freshet_graph.stream.store.log.ids, "MOST_FILES", 2)
    seal(store, SNAPSHOTS, SNAPSHOTS + 1)
    compact(store, Keep(snapshots=4), always=True)
    log = LogReader(store)
    indexed = log.external_ids().num_chunks
    assert indexed == len(log.index.ids)
    for number in range(SNAPSHOTS + 1, SNAPSHOTS + 7):
        seal(store, number, number + 1)
        log.refresh()
        ids = log.external_ids()
        assert ids.equals(LogReader(store).external_ids())
        assert len(ids) == log.snapshots[-1].num_nodes
        assert ids.num_chunks - indexed == (1, 2, 1, 2, 1, 2)[number - SNAPSHOTS - 1]


def test_external_ids_are_read_again_where_their_files_were_put_together_meanwhile(store, monkeypatch):
    seal(store, SNAPSHOTS, SNAPSHOTS + 1)
    log, expected = LogReader(store), LogReader(store).external_ids()

    def gone() -> None:
        if len(calls) == 1:
            compact(store, Keep(snapshots=4), always=True)
            raise MissingError("a file of ids is missing")

    calls = with_before(monkeypatch, freshet_graph.stream.store.log.ids, "indexed_ids", gone)
    assert log.external_ids().equals(expected)
    assert len(calls) >= 2


def test_opening_a_log_misses_nothing_where_commits_are_folded_meanwhile(store):
    def more() -> None:
        end = len(LogReader(store).snapshots)
        if end < SNAPSHOTS + 4:
            seal(store, end, end + 4)
            compact(store, Keep(snapshots=KEPT), always=True)
            seal(store, end + 4, end + 5)

    chain = CommitChain(LogReader(store).root, LogReader(store).header)
    chain.refresh()
    more()
    chain.require_whole()
    assert len(chain.sealed) == SNAPSHOTS + 5


def test_a_log_with_a_gap_is_refused_all_the_same(store):
    chain = CommitChain(LogReader(store).root, LogReader(store).header)
    chain.refresh()
    seal(store, SNAPSHOTS, SNAPSHOTS + 2)
    commits = sorted(name for name in files_of(store) if name.startswith("log/commits/"))
    files_of(store)[commits[-2]].unlink()
    with pytest.raises(CorruptError, match="is missing, though commit"):
        chain.require_whole()


def test_opening_a_lane_misses_nothing_where_snapshots_are_dropped_meanwhile(store):
    reader = LaneReader(store, "distdy")
    seal(store, SNAPSHOTS, SNAPSHOTS + 6)
    catch_up(store, *LANES)
    compact(store, Keep(snapshots=2), always=True)
    reader.require_whole(set(manifest_taus(reader.root)))
    assert len(reader.manifests) == SNAPSHOTS + 6


def test_the_job_leaves_its_store_to_a_compaction_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_log, "PAUSE_S", 0.0)
    grown(tmp_path, end=2)
    retried: list[None] = []
    with structlog.testing.capture_logs() as lines:
        beside = open_log.CompactionThread(stream_config(str(tmp_path)), lambda: retried.append(None))
        lock = lock_folder(place_of(tmp_path) / "log", "freshet-stream-compact", COMPACTION)
        try:
            beside.wake()
            until = time.monotonic() + 30
            while not lines and time.monotonic() < until:
                time.sleep(0.01)
        finally:
            lock.release()
            beside.close()
    assert {(line["log_level"], line["event"]) for line in lines} == {
        ("info", "another process compacts the store")
    }
    assert retried == [], "it is no failure, which an alert would count"
