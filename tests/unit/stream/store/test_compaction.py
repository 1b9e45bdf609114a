"""Compaction, in a folder or a bucket: what stays says the same as before, what goes is told, writers and readers go on."""

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from compacted import EVENTS, HEADER, catch_up, grown, log_content, seal, seen
from lane_stream import SECOND, lane, random_events
from log_events import event_columns
from placed import files_of, problems_of, sizes, write

from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError, LaneBusyError, RetainedError
from freshet_graph.stream.store.files.sweep import COMPACTION, lock_folder
from freshet_graph.stream.store.graph import read_graph
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.layout import commit_name
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.store import verify

LANES = (lane("distdy"), lane("sep", edge_life=2))
SNAPSHOTS, KEPT = 12, 4
FIRST = SNAPSHOTS - KEPT
STREAM = EVENTS.filter(pa.array(EVENTS["t"].to_numpy() < SNAPSHOTS * SECOND))
LOCK_BYTES = 200
"""What a lock may say of who holds it."""


@pytest.fixture(scope="module")
def whole(places):
    return grown(places.new(), *LANES, end=SNAPSHOTS)


@pytest.fixture(scope="module")
def short(whole, places):
    store = places.copy(whole)
    done = compact(store, Keep(snapshots=KEPT), always=True)
    assert (done.dropped, done.first, done.held_by) == (FIRST, FIRST, [])
    return store


@pytest.fixture
def copy(whole, places):
    """The whole store, to be changed."""
    return places.copy(whole)


@pytest.fixture
def short_copy(short, places):
    """The compacted store, to be changed."""
    return places.copy(short)


def test_an_index_says_what_the_commits_said(whole, copy):
    store = copy
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
    for chosen in LANES:
        assert seen(short, chosen.name, FIRST) == seen(whole, chosen.name, FIRST)


def test_totals_are_those_of_all_there_ever_was(whole, short):
    all_of_it, kept = inspect(whole), inspect(short)
    for key in ("snapshots", "events", "inserts", "deletes", "nodes", "live_edges", "last", "offsets"):
        assert kept[key] == all_of_it[key]
    assert (kept["kept"], kept["first"], kept["lanes"]["sep"]["snapshots"]) == (KEPT, FIRST, KEPT)
    assert kept["log_bytes"] < all_of_it["log_bytes"] / 2


def test_who_asks_for_what_is_gone_is_told_from_where_to_start(short):
    log, reader = LogReader(short), LaneReader(short, "distdy")
    for ask in (
        lambda: log.events(FIRST - 1),
        lambda: next(log.follow(after=2, timeout_s=0)),
        lambda: log.count(AsOf(tau=1)),
        lambda: reader.manifests[FIRST - 1],
        lambda: next(reader.follow(after_sequence=2, timeout_s=0)),
    ):
        with pytest.raises(RetainedError, match=rf"can start from (number )?{FIRST}"):
            ask()
    assert next(log.follow(timeout_s=0)).tau == FIRST
    assert next(reader.follow(timeout_s=0)).sequence == FIRST


def test_a_reader_from_before_is_told_as_well(copy):
    store = copy
    reader = LaneReader(store, "distdy")
    stale = reader.manifests[2]
    follower = reader.log.follow(after=3, timeout_s=0)
    assert next(follower).tau == 4
    compact(store, Keep(snapshots=KEPT), always=True)
    with pytest.raises(RetainedError, match=f"can start from {FIRST}"):
        reader.changes(stale, [0])  # of files that no reader of this machine has copies of
    with pytest.raises(RetainedError, match=f"can start from number {FIRST}"):
        next(follower)
        next(follower)


@pytest.mark.parametrize("chosen", [*LANES, lane("hash")], ids=lambda chosen: chosen.name)
def test_a_writer_that_goes_on_makes_the_same_files_as_if_nothing_had_gone(chosen, places):
    reference = grown(places.new(), chosen, end=SNAPSHOTS)
    store = grown(places.new(), chosen, end=8)
    compact(store, Keep(snapshots=4), always=True)
    seal(store, 8, 10)
    catch_up(store, chosen)
    compact(store, Keep(snapshots=3), always=True)
    seal(store, 10, SNAPSHOTS)
    catch_up(store, chosen)
    assert verify(store).problems == []
    assert log_content(store, 8) == log_content(reference, 8)
    expected, found = (arrow_files(of, chosen.name) for of in (reference, store))
    assert found.items() <= expected.items()
    assert {f"lanes/{chosen.name}/snapshots/{tau}/edges.arrow" for tau in range(8, SNAPSHOTS)} <= found.keys()


def arrow_files(store, name: str) -> dict[str, bytes]:
    """The Arrow files of a lane's snapshots; states apart, of which a bucket keeps older ones for longer."""
    files = files_of(store).items()
    return {n: path.read_bytes() for n, path in files if n.startswith(f"lanes/{name}/snapshots/")}


@pytest.mark.parametrize("edge_life", [None, 1, 3])
@pytest.mark.parametrize("algorithm", ["distdy", "hdrf"])
def test_a_lane_that_is_added_later_has_the_same_graph(short_copy, live_edges, algorithm, edge_life):
    store = short_copy
    late = lane(algorithm, edge_life=edge_life).model_copy(update={"name": "late"})
    with LaneWriter(store, late) as writer:
        assert writer.catch_up() == KEPT
    assert verify(store).problems == []  # rebuilds every snapshot beside the log's live graph
    assert [m.live_edges for m in LaneReader(store, "late").manifests] == live_edges(edge_life)
    compact(store, Keep(snapshots=3), always=True)
    assert verify(store).problems == []


@pytest.fixture(scope="module")
def live_edges(tmp_path_factory):
    """Live pairs of the kept snapshots by edge life, of a lane that was there from the begin."""

    @cache
    def of(edge_life):
        reference = lane("hash", edge_life=edge_life).model_copy(update={"name": "late"})
        store = grown(tmp_path_factory.mktemp("reference"), reference, end=SNAPSHOTS)
        return [m.live_edges for m in LaneReader(store, "late").manifests[FIRST:]]

    return of


def test_a_lane_that_lags_keeps_what_it_needs(place):
    store = grown(place, lane("hash"), end=6)
    seal(store, 6, SNAPSHOTS)
    done = compact(store, Keep(snapshots=4), always=True)
    assert done.held_by == ["hash"]
    assert done.first is not None
    assert done.first <= 6
    catch_up(store, lane("hash"))
    assert verify(store).problems == []
    assert compact(store, Keep(snapshots=4), always=True).first == SNAPSHOTS - 4


def test_a_lane_whose_states_are_old_keeps_them_and_what_it_replays(place):
    """Many live pairs and few events a snapshot: no state is due for long, and without one a lane can't go on."""
    many = random_events(snapshots=1, a_snapshot=2000, nodes=200)
    few = random_events(seed=1, a_snapshot=3, snapshots=SNAPSHOTS)
    later = few.filter(pa.array(few["t"].to_numpy() >= SECOND))
    seal(place, 0, 8, pa.concat_tables([many, later]))
    catch_up(place, lane("hash"))
    assert compact(place, Keep(snapshots=4), always=True).held_by == ["hash"]
    seal(place, 8, SNAPSHOTS, later)
    catch_up(place, lane("hash"))
    assert verify(place).problems == []
    assert len(LaneReader(place, "hash").manifests) == SNAPSHOTS


def test_nodes_that_nothing_kept_names_are_in_the_graph(place):
    """Their edges were deleted in snapshots that are gone: no live pair and no kept event has their ids."""
    rows = [(1, node, node + 1, 0) for node in range(9)] + [(-1, node, node + 1, 1) for node in range(9)]
    rows += [(1, 0, 1, k) for k in range(2, 6)]
    op, src, dst, tau = np.array(rows).T
    seal(place, 0, 6, event_columns({"op": op, "src": src, "dst": dst, "t": tau * SECOND}))
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


def test_no_rule_goes_below_the_window_that_trainers_look_back(place):
    store = grown(place, lane("hash", window=7), end=SNAPSHOTS)
    assert compact(store, Keep(snapshots=1), always=True).first == SNAPSHOTS - 7


@pytest.mark.parametrize(
    ("keep", "first"),
    [
        (Keep(), 0),
        (Keep(snapshots=5), 7),
        (Keep(time_s=3), 9),
        (Keep(snapshots=5, time_s=3), 7),
        (Keep(snapshots=2, time_s=8), 4),
        (Keep(snapshots=2, events_s=10), 1),
        (Keep(time_s=1e9), 0),
    ],
)
def test_a_snapshot_stays_while_a_rule_keeps_it(whole, keep, first):
    assert keep.first(LogReader(whole), 1) == first


def test_beside_the_job_only_an_eighth_at_a_time_goes(copy):
    store = copy
    assert compact(store, Keep(snapshots=11)).dropped == 1
    assert compact(store, Keep(snapshots=9)).dropped == 2
    assert compact(store, Keep(snapshots=9)).indexed == []


def test_freed_bytes_are_those_of_the_files_that_went(copy):
    store = copy
    for keep in (
        Keep(),
        Keep(),
        Keep(snapshots=KEPT),
    ):  # the second writes indexes anew and drops next to nothing
        before = sizes(store)
        done = compact(store, keep, always=True)
        after = sizes(store)
        assert done.freed_bytes == sum(size for path, size in before.items() if path not in after)


@pytest.mark.slow
def test_a_lane_is_filled_from_a_year_of_log_and_its_space_freed(places, tmp_path):
    """365 days without a lane, half of them known from an index; every snapshot of the lane is rebuilt and compared."""
    store, days = (places.new(), 24) if places.in_bucket else (tmp_path, 365)
    a_day = 4
    rng = np.random.default_rng(3)
    t = np.repeat(np.arange(days), a_day) * SECOND
    op, ends = rng.choice([1, 1, 1, -1], len(t)), rng.integers(0, 30, (2, len(t)))
    events = event_columns({"op": op, "src": ends[0], "dst": ends[1], "t": t})
    for first, end in ((0, days // 2), (days // 2, days)):
        with LogWriter.open(store, HEADER) as log:
            log.commit(seal=[(day, events.slice(a_day * day, a_day)) for day in range(first, end)])
        if first == 0:
            compact(store, always=True)
    catch_up(store, lane("sep"))
    assert [m.tau for m in LaneReader(store, "sep").manifests] == list(range(days))
    assert verify(store).problems == []
    taken = sum(size for path, size in sizes(store).items() if path.startswith("lanes/sep/"))
    assert compact(store, remove=["sep"]).freed_bytes == pytest.approx(taken, abs=LOCK_BYTES)
    assert not any(path.startswith("lanes/sep") for path in sizes(store))


def test_removing_a_lane_frees_its_space(copy):
    store = copy
    taken = sum(size for path, size in sizes(store).items() if path.startswith("lanes/sep/"))
    with pytest.raises(ConfigMissingError, match="no lane 'typo'"):
        compact(store, remove=["sep", "typo"])  # said before anything is gone
    done = compact(store, remove=["sep", "sep"])
    assert done.removed == ["sep"]
    assert done.freed_bytes == pytest.approx(taken, abs=LOCK_BYTES)
    assert sorted(path.name for path in (store / "lanes").iterdir()) == ["distdy"]
    with pytest.raises(ConfigMissingError, match="no lane 'sep'"):
        compact(store, remove=["sep"])
    with LaneWriter(store, lane("distdy")), pytest.raises(LaneBusyError):
        compact(store, remove=["distdy"])
    catch_up(store, lane("sep"))  # another one of that name may come
    assert verify(store).problems == []


def indexes(root: Place, suffix: str) -> list[Place]:
    """Files of the indexes of a log or lane, the oldest first."""
    found = [path for path in (root / "index").iterdir() if path.name[0].isdigit()]
    return sorted((path for path in found if path.name.endswith(f".{suffix}")), key=str)


@pytest.mark.parametrize("suffix", ["json", "arrow"])
@pytest.mark.parametrize("newest", [True, False])
def test_a_damaged_copy_of_an_index_is_told_and_the_other_one_read(short_copy, whole, newest, suffix):
    store = short_copy
    path = indexes(store / "log", suffix)[-1 if newest else 0]
    write(path, path.read_bytes()[:-9] + b"123456789")
    assert log_content(store, FIRST) == log_content(whole, FIRST)
    assert any(str(path) in problem for problem in problems_of(store))
    compact(store, Keep(snapshots=KEPT), always=True)
    assert verify(store).problems == []


def test_without_any_copy_the_commits_that_were_folded_are_missed(short, change):
    for path in indexes(short / "log", "json"):
        change.write(path, b"{}")
    with pytest.raises(CorruptError, match=r"folded into it are gone\. Restore the index"):
        LogReader(short)
    assert not verify(short).ok


def test_an_index_that_is_lost_before_anything_was_folded_costs_nothing(whole, copy):
    store = copy
    compact(store, always=True)
    for folder in ("commits", "labels"):
        for path in (whole / "log" / folder).iterdir():
            write(store / "log" / folder / path.name, path.read_bytes())
    for name, path in files_of(store).items():
        if "/index/" in name:
            path.unlink()
    assert verify(store).problems == []
    assert LogReader(store).snapshots == LogReader(whole).snapshots
    compact(store, always=True)
    assert verify(store).problems == []


def test_two_compactions_at_once_are_one_too_many(whole):
    lock = lock_folder(whole / "log", "another", COMPACTION)
    with pytest.raises(LaneBusyError, match="being compacted by another"):
        compact(whole)
    lock.release()


def test_a_store_can_be_described_as_of_an_earlier_moment(whole, short):
    earlier = inspect(whole, AsOf.parse("6"))
    assert (earlier["snapshots"], earlier["last"]) == (7, 6)
    assert earlier["lanes"]["distdy"]["snapshots"] == 7
    of_now = {
        "committed",
        "open_events",
        "labels",
        "late",
        "refused",
        "refused_by_reason",
        "duplicates",
        "offsets",
        "history",
    }
    assert inspect(whole).keys() - earlier.keys() == of_now
    with pytest.raises(RetainedError, match=r"log has no snapshot as old as -5; it holds 0 to \d+, "):
        inspect(whole, AsOf.parse("-5"))
    assert inspect(whole, AsOf.parse("@7.5")) == earlier
    assert inspect(whole, AsOf.parse("1970-01-01T00:00:07")) == earlier
    fresh = inspect(whole, AsOf.parse("1999-01-01"))
    assert fresh["events"] == len(STREAM)
    with pytest.raises(RetainedError, match=f"can start from {FIRST}"):
        inspect(short, AsOf.parse("6"))
    assert inspect(short, AsOf.parse("9"))["live_edges"] == inspect(whole, AsOf.parse("9"))["live_edges"]


def test_offline_commands_take_a_stores_events_as_of_a_moment(whole, short):
    from freshet_graph.stream.store.store_events import store_events

    upto = store_events(whole, AsOf(tau=6))
    assert upto.events.equals(STREAM.filter(pa.array(STREAM["t"].to_numpy() < 7 * SECOND)))
    assert store_events(whole).events.equals(STREAM)
    kept = STREAM.filter(pa.array(STREAM["t"].to_numpy() >= FIRST * SECOND))
    found = store_events(short).events
    assert found.slice(len(found) - len(kept)).equals(kept)
    with pytest.raises(RetainedError):
        store_events(short, AsOf(tau=6))
