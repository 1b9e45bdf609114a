"""Compaction: what stays says the same as before, what goes is told, and writers and readers go on."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from compacted import EVENTS, HEADER, SNAPSHOTS, catch_up, grown, log_content, seal, seen
from lane_stream import SECOND, lane, lane_files, random_events

from schemas.events import event_schema
from stream.store.as_of import AsOf
from stream.store.compact.retention import Keep
from stream.store.compact.store import compact
from stream.store.errors import ConfigMissingError, CorruptError, LaneBusyError, RetainedError
from stream.store.graph import read_graph
from stream.store.inspect import inspect
from stream.store.lane.reader import LaneReader
from stream.store.lane.writer import LaneWriter
from stream.store.log.layout import commit_name
from stream.store.log.reader import LogReader
from stream.store.log.writer import LogWriter
from stream.store.verify.store import verify

LANES = (lane("distdy"), lane("sep", edge_life=2), lane("hash"))
KEPT = 6
FIRST = SNAPSHOTS - KEPT
LOCK_BYTES = 200
"""What a lock may say of who holds it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return grown(tmp_path_factory.mktemp("whole"), *LANES)


@pytest.fixture(scope="module")
def short(whole, tmp_path_factory):
    store = tmp_path_factory.mktemp("short") / "store"
    shutil.copytree(whole, store)
    done = compact(store, Keep(snapshots=KEPT), always=True)
    assert (done.dropped, done.first, done.held_by) == (FIRST, FIRST, [])
    return store


def copy(store: Path, folder: Path) -> Path:
    return Path(shutil.copytree(store, folder / "store"))


def test_an_index_says_what_the_commits_said(whole, tmp_path):
    store = copy(whole, tmp_path)
    before = inspect(store)
    done = compact(store, always=True)
    assert (done.dropped, done.folded) == (0, SNAPSHOTS - 1)
    assert [p.name for p in (store / "log" / "commits").iterdir()] == [Path(commit_name(SNAPSHOTS - 1)).name]
    after = inspect(store)
    for found in (before, after):
        for found_lane in found["lanes"].values():
            del found_lane["disk_bytes"]  # indexes are files, too
    assert after == before
    assert LogReader(store).snapshots == LogReader(whole).snapshots
    assert LaneReader(store, "sep").manifests == LaneReader(whole, "sep").manifests
    assert log_content(store, 0) == log_content(whole, 0)
    assert verify(store).problems == []


def test_snapshots_that_stay_are_seen_as_before(whole, short):
    assert verify(short).problems == []
    assert log_content(short, FIRST) == log_content(whole, FIRST)
    for name in ("distdy", "sep", "hash"):
        assert seen(short, name, FIRST) == seen(whole, name, FIRST)


def test_totals_are_those_of_all_there_ever_was(whole, short):
    all_of_it, kept = inspect(whole), inspect(short)
    for key in ("snapshots", "events", "inserts", "deletes", "nodes", "live_edges", "last", "offsets"):
        assert kept[key] == all_of_it[key]
    assert (kept["kept"], kept["first"], kept["lanes"]["hash"]["snapshots"]) == (KEPT, FIRST, KEPT)
    assert kept["log_bytes"] < all_of_it["log_bytes"] / 2


def test_who_asks_for_what_is_gone_is_told_from_where_to_start(short):
    log, reader = LogReader(short), LaneReader(short, "distdy")
    for ask in (
        lambda: log.events(FIRST - 1),
        lambda: next(log.follow(after=2, timeout_s=0)),
        lambda: log.as_of(tau=1),
        lambda: reader.manifests[FIRST - 1],
        lambda: next(reader.follow(after_sequence=2, timeout_s=0)),
    ):
        with pytest.raises(RetainedError, match=rf"can start from (number )?{FIRST}"):
            ask()
    assert next(log.follow(timeout_s=0)).tau == FIRST
    assert next(reader.follow(timeout_s=0)).sequence == FIRST


def test_a_reader_from_before_is_told_as_well(whole, tmp_path):
    store = copy(whole, tmp_path)
    reader = LaneReader(store, "distdy")
    stale = reader.manifests[2]
    follower = reader.log.follow(after=3, timeout_s=0)
    assert next(follower).tau == 4
    compact(store, Keep(snapshots=KEPT), always=True)
    with pytest.raises(RetainedError, match=f"can start from {FIRST}"):
        reader.changes(stale, [0])
    with pytest.raises(RetainedError, match=f"can start from number {FIRST}"):
        next(follower)
        next(follower)


@pytest.mark.parametrize("chosen", LANES, ids=lambda chosen: chosen.name)
def test_a_writer_that_goes_on_makes_the_same_files_as_if_nothing_had_gone(chosen, tmp_path):
    reference = grown(tmp_path / "reference", chosen)
    store = grown(tmp_path / "store", chosen, end=12)
    compact(store, Keep(snapshots=5), always=True)
    seal(store, 12, 16)
    catch_up(store, chosen)
    compact(store, Keep(snapshots=4), always=True)
    seal(store, 16, SNAPSHOTS)
    catch_up(store, chosen)
    assert verify(store).problems == []
    assert log_content(store, 12) == log_content(reference, 12)
    expected = lane_files(reference, chosen.name)
    found = {p: b for p, b in lane_files(store, chosen.name).items() if not p.startswith("index/")}
    assert found.items() <= expected.items()
    assert {f"snapshots/{tau}/edges.arrow" for tau in range(12, SNAPSHOTS)} <= found.keys()


@pytest.mark.parametrize("edge_life", [None, 1, 3])
@pytest.mark.parametrize("algorithm", ["distdy", "hdrf"])
def test_a_lane_that_is_added_later_has_the_same_graph(short, tmp_path, algorithm, edge_life):
    store = copy(short, tmp_path)
    late = lane(algorithm, edge_life=edge_life).model_copy(update={"name": "late"})
    with LaneWriter(store, late) as writer:
        assert writer.catch_up() == KEPT
    assert verify(store).problems == []  # rebuilds every snapshot beside the log's live graph
    reference = lane("hash", edge_life=edge_life).model_copy(update={"name": "late"})
    whole = grown(tmp_path / "whole", reference)
    pairs = [m.live_edges for m in LaneReader(whole, "late").manifests[FIRST:]]
    assert [m.live_edges for m in LaneReader(store, "late").manifests] == pairs
    compact(store, Keep(snapshots=3), always=True)
    assert verify(store).problems == []


def test_a_lane_that_lags_keeps_what_it_needs(place):
    store = grown(place, lane("hash"), end=8)
    seal(store, 8, SNAPSHOTS)
    done = compact(store, Keep(snapshots=4), always=True)
    assert done.held_by == ["hash"]
    assert done.first is not None
    assert done.first <= 8
    catch_up(store, lane("hash"))
    assert verify(store).problems == []
    assert compact(store, Keep(snapshots=4), always=True).first == SNAPSHOTS - 4


def test_a_lane_whose_states_are_old_keeps_them_and_what_it_replays(tmp_path):
    """Many live pairs and few events a snapshot: no state is due for long, and without one a lane can't go on."""
    many = random_events(snapshots=1, a_snapshot=2000, nodes=200)
    few = random_events(seed=1, a_snapshot=3, snapshots=SNAPSHOTS)
    later = few.filter(pa.array(few["t"].to_numpy() >= SECOND))
    seal(tmp_path, 0, 10, pa.concat_tables([many, later]))
    catch_up(tmp_path, lane("hash"))
    assert compact(tmp_path, Keep(snapshots=4), always=True).held_by == ["hash"]
    seal(tmp_path, 10, SNAPSHOTS, later)
    catch_up(tmp_path, lane("hash"))
    assert verify(tmp_path).problems == []
    assert len(LaneReader(tmp_path, "hash").manifests) == SNAPSHOTS


def test_nodes_that_nothing_kept_names_are_in_the_graph(place):
    """Their edges were deleted in snapshots that are gone: no live pair and no kept event has their ids."""
    rows = [(1, node, node + 1, 0) for node in range(9)] + [(-1, node, node + 1, 1) for node in range(9)]
    rows += [(1, 0, 1, k) for k in range(2, 6)]
    columns = {
        "op": [row[0] for row in rows],
        "src": [row[1] for row in rows],
        "dst": [row[2] for row in rows],
    }
    columns |= {"t": [row[3] * SECOND for row in rows], "weight": [1.0] * len(rows)}
    empty = [None] * len(rows)
    events = pa.table(
        {n: columns.get(n, empty) for n in event_schema("int").names}, schema=event_schema("int")
    )
    seal(place, 0, 6, events)
    before = read_graph(place)
    compact(place, Keep(snapshots=2), always=True)
    after = read_graph(place)
    assert after.num_nodes == before.num_nodes == 10
    assert (after.features == before.features).all()
    assert (after.src.tolist(), after.dst.tolist()) == ([0], [1])


def test_a_lane_that_lags_says_how_far_it_has_come(place):
    store = grown(place, lane("hash"), end=4)
    seal(store, 4, 6)
    with pytest.raises(RetainedError, match=r"lane hash of .* has not come to snapshot 5; it has 0 to 3"):
        read_graph(store, lane="hash", as_of=AsOf(tau=5))


def test_no_rule_goes_below_the_window_that_trainers_look_back(tmp_path):
    store = grown(tmp_path, lane("hash", window=7))
    assert compact(store, Keep(snapshots=1), always=True).first == SNAPSHOTS - 7


@pytest.mark.parametrize(
    ("keep", "first"),
    [
        (Keep(), 0),
        (Keep(snapshots=5), 15),
        (Keep(time_s=3), 17),
        (Keep(snapshots=5, time_s=3), 15),
        (Keep(snapshots=2, time_s=8), 12),
        (Keep(snapshots=2, events_s=10), 9),
        (Keep(time_s=1e9), 0),
    ],
)
def test_a_snapshot_stays_while_a_rule_keeps_it(whole, keep, first):
    assert keep.first(LogReader(whole), 1) == first


def test_beside_the_job_only_an_eighth_at_a_time_goes(whole, tmp_path):
    store = copy(whole, tmp_path)
    assert compact(store, Keep(snapshots=19)).dropped == 0
    assert compact(store, Keep(snapshots=17)).dropped == 3
    assert compact(store, Keep(snapshots=17)).indexed == []


def test_freed_bytes_are_those_of_the_files_that_went(whole, tmp_path):
    store = copy(whole, tmp_path)
    for keep in (
        Keep(),
        Keep(),
        Keep(snapshots=KEPT),
    ):  # the second writes indexes anew and drops next to nothing
        before = sizes(store)
        done = compact(store, keep, always=True)
        after = sizes(store)
        assert done.freed_bytes == sum(size for path, size in before.items() if path not in after)


def test_a_lane_is_filled_from_a_year_of_log_and_its_space_freed(tmp_path):
    """365 days without a lane, half of them known from an index; every snapshot of the lane is rebuilt and compared."""
    days, a_day = 365, 4
    rng = np.random.default_rng(3)
    t = np.repeat(np.arange(days), a_day) * SECOND
    given = {
        "op": rng.choice([1, 1, 1, -1], len(t)).astype(np.int8),
        "src": rng.integers(0, 30, len(t)),
        "dst": rng.integers(0, 30, len(t)),
        "t": t,
        "weight": np.ones(len(t), np.float32),
    }
    columns = [
        pa.array(given[f.name]) if f.name in given else pa.nulls(len(t), f.type) for f in event_schema("int")
    ]
    events = pa.table(columns, schema=event_schema("int"))
    for first, end in ((0, 180), (180, days)):
        with LogWriter.open(tmp_path, HEADER) as log:
            log.commit(seal=[(day, events.slice(a_day * day, a_day)) for day in range(first, end)])
        if first == 0:
            compact(tmp_path, always=True)
    catch_up(tmp_path, lane("sep"))
    assert [m.tau for m in LaneReader(tmp_path, "sep").manifests] == list(range(days))
    assert verify(tmp_path).problems == []
    taken = sum(size for path, size in sizes(tmp_path).items() if path.startswith("lanes/sep/"))
    assert compact(tmp_path, remove=["sep"]).freed_bytes == pytest.approx(taken, abs=LOCK_BYTES)
    assert not any(path.startswith("lanes/sep") for path in sizes(tmp_path))


def sizes(store: Path) -> dict[str, int]:
    """Lengths of all files of a store."""
    return {str(path.relative_to(store)): path.stat().st_size for path in store.rglob("*") if path.is_file()}


def test_removing_a_lane_frees_its_space(whole, tmp_path):
    store = copy(whole, tmp_path)
    taken = sum(path.stat().st_size for path in (store / "lanes" / "sep").rglob("*") if path.is_file())
    with pytest.raises(ConfigMissingError, match="no lane 'typo'"):
        compact(store, remove=["sep", "typo"])  # said before anything is gone
    done = compact(store, remove=["sep", "sep"])
    assert done.removed == ["sep"]
    assert done.freed_bytes == pytest.approx(taken, abs=LOCK_BYTES)
    assert sorted(path.name for path in (store / "lanes").iterdir()) == ["distdy", "hash"]
    with pytest.raises(ConfigMissingError, match="no lane 'sep'"):
        compact(store, remove=["sep"])
    with LaneWriter(store, lane("hash")), pytest.raises(LaneBusyError):
        compact(store, remove=["hash"])
    catch_up(store, lane("sep"))  # another one of that name may come
    assert verify(store).problems == []


@pytest.mark.parametrize("suffix", ["json", "arrow"])
@pytest.mark.parametrize("newest", [True, False])
def test_a_damaged_copy_of_an_index_is_told_and_the_other_one_read(short, whole, tmp_path, newest, suffix):
    store = copy(short, tmp_path)
    path = sorted((store / "log" / "index").glob(f"[0-9]*.{suffix}"))[-1 if newest else 0]
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    assert log_content(store, FIRST) == log_content(whole, FIRST)
    assert any(str(path) in problem for problem in verify(store).problems)
    compact(store, Keep(snapshots=KEPT), always=True)
    assert verify(store).problems == []


def test_without_any_copy_the_commits_that_were_folded_are_missed(short, tmp_path):
    store = copy(short, tmp_path)
    for path in (store / "log" / "index").glob("*.json"):
        path.write_bytes(b"{}")
    with pytest.raises(CorruptError, match="folded into it, so restore it"):
        LogReader(store)
    assert not verify(store).ok


def test_an_index_that_is_lost_before_anything_was_folded_costs_nothing(whole, tmp_path):
    store = copy(whole, tmp_path)
    compact(store, always=True)
    shutil.copytree(whole / "log" / "commits", store / "log" / "commits", dirs_exist_ok=True)
    for folder in (store / "log" / "index", *(store / "lanes").glob("*/index")):
        shutil.rmtree(folder)
    assert verify(store).problems == []
    assert LogReader(store).snapshots == LogReader(whole).snapshots
    compact(store, always=True)
    assert verify(store).problems == []


def test_a_base_that_says_something_else_is_found(short, tmp_path):
    for folder in ("log", "lanes/distdy"):
        store = copy(short, tmp_path / folder.replace("/", "-"))
        (base,) = (store / folder / "index").glob("base-*.arrow")
        raw = bytearray(base.read_bytes())
        raw[len(raw) // 2] ^= 1
        base.write_bytes(raw)
        assert any(str(base) in problem for problem in verify(store).problems)


def test_two_compactions_at_once_are_one_too_many(whole, tmp_path):
    from stream.store.files.lock import COMPACTION, FolderLock

    store = copy(whole, tmp_path)
    lock = FolderLock(store / "log", "another", COMPACTION)
    with pytest.raises(LaneBusyError, match="being compacted by another"):
        compact(store)
    lock.release()


def test_a_store_can_be_described_as_of_an_earlier_moment(whole, short):

    assert EVENTS["t"][0].as_py() >= 0
    earlier = inspect(whole, AsOf.parse("9"))
    assert (earlier["snapshots"], earlier["last"]) == (10, 9)
    assert earlier["lanes"]["distdy"]["snapshots"] == 10
    assert inspect(whole, AsOf.parse("@10.5")) == earlier
    assert inspect(whole, AsOf.parse("1970-01-01T00:00:10")) == earlier
    fresh = inspect(whole, AsOf.parse("1999-01-01"))
    assert fresh["events"] == len(EVENTS)
    with pytest.raises(RetainedError, match=f"can start from {FIRST}"):
        inspect(short, AsOf.parse("9"))
    assert inspect(short, AsOf.parse("16"))["live_edges"] == inspect(whole, AsOf.parse("16"))["live_edges"]


def test_offline_commands_take_a_stores_events_as_of_a_moment(whole, short):
    from stream.store.store_events import store_events

    upto = store_events(whole, AsOf(tau=9))
    assert upto.events.equals(EVENTS.filter(pa.array(EVENTS["t"].to_numpy() < 10 * SECOND)))
    assert store_events(whole).events.equals(EVENTS)
    kept = EVENTS.filter(pa.array(EVENTS["t"].to_numpy() >= FIRST * SECOND))
    found = store_events(short).events
    assert found.slice(len(found) - len(kept)).equals(kept)
    with pytest.raises(RetainedError):
        store_events(short, AsOf(tau=9))
