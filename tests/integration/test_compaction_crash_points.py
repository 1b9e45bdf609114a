"""Compaction that is killed at any point: nothing that is kept is lost, readers see it, and the next one goes on."""

import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from compacted import SNAPSHOTS, catch_up, grown, log_content, seal, seen
from compaction_crash_job import compact_store
from lane_stream import lane

from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.crash import COMPACTION, CRASH_POINTS
from freshet_graph.stream.store.errors import RetainedError
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify

LANES = (lane("distdy"), lane("sep", edge_life=2))
KEPT, AGAIN = 8, 5
FIRST = SNAPSHOTS - AGAIN
WITHIN = [point for point in CRASH_POINTS if point.startswith(("file", "record"))]
POINTS = [
    *(f"{point}:1" for point in (*WITHIN, *COMPACTION[:-1])),  # the first lane's
    *(f"file.renamed:{k}" for k in (2, 3, 5, 6, 7, 8, 9)),
    *(f"record.linked:{k}" for k in (2, 3, 5, 6)),
    *(f"{point}:3" for point in COMPACTION[:-1]),  # the log's
]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """Compacted once, so that there is an index and a base to replace."""
    store = grown(tmp_path_factory.mktemp("before"), *LANES)
    compact(store, Keep(snapshots=KEPT), always=True)
    return store


@pytest.fixture(scope="module")
def shown(before):
    return [log_content(before, FIRST), *(seen(before, chosen.name, FIRST) for chosen in LANES)]


def index_files(store: Path) -> list[str]:
    return sorted(str(p.relative_to(store)).rsplit("/", 1)[0] for p in store.rglob("index/*"))


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_every_point_of_a_compaction_loses_nothing(processes, before, shown, tmp_path, point):
    store = Path(shutil.copytree(before, tmp_path / "store"))
    job = processes.Process(target=compact_store, args=(store, AGAIN, point))
    job.start()
    job.join(180)
    assert job.exitcode == -signal.SIGKILL, f"{point} was not reached"
    assert verify(store).problems == []
    assert [log_content(store, FIRST), *(seen(store, chosen.name, FIRST) for chosen in LANES)] == shown
    compact(store, Keep(snapshots=AGAIN), always=True)
    assert verify(store).problems == []
    # Two copies of a record and its rows for log and lanes, a base each, the ids and the labels: nothing is left over.
    assert len(index_files(store)) == 3 * 5 + 2
    assert LogReader(store).snapshots.first == FIRST


def test_a_kill_while_a_lane_is_removed_leaves_a_store_without_it(processes, before, tmp_path):
    store = Path(shutil.copytree(before, tmp_path / "store"))
    job = processes.Process(target=compact_store, args=(store, KEPT, "compact.removing", ("sep",)))
    job.start()
    job.join(180)
    assert job.exitcode == -signal.SIGKILL
    assert verify(store).problems == []
    compact(store)
    assert [path.name for path in (store / "lanes").iterdir()] == ["distdy"]


def test_a_writer_two_readers_and_verify_go_on_beside_compaction(place, monkeypatch):
    """The log grows and is compacted all the while; a reader of the log and one of a lane see every snapshot once."""
    monkeypatch.setattr("freshet_graph.stream.store.files.follow.BUCKET_POLL_S", 0.1)
    begun, end = 6, SNAPSHOTS if isinstance(place, Path) else 12
    store = grown(place, lane("hash"), end=begun)
    seen_taus: dict[str, list[int]] = {"log": [], "lane": []}
    failures: list[object] = []
    looks: list[int] = []
    ended = threading.Event()

    def follow_log() -> None:
        log = LogReader(store)
        for snapshot in log.follow(after=begun - 1, stop=ended.is_set):
            assert len(log.events(snapshot.tau)) == snapshot.num_events
            seen_taus["log"].append(snapshot.tau)

    def follow_lane() -> None:
        reader = LaneReader(store, "hash")
        for manifest in reader.follow(begun - 1, stop=ended.is_set):
            reader.changes(manifest, [0, 1])
            seen_taus["lane"].append(manifest.tau)

    def compacting() -> None:
        while not ended.is_set():
            compact(store, Keep(snapshots=5), always=True)

    def verifying() -> None:
        while not ended.is_set():
            failures.extend(verify(store).problems)
            looks.append(1)

    def told(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=told, args=(work,))
        for work in (follow_log, follow_lane, compacting, verifying)
    ]
    for thread in threads:
        thread.start()
    for tau in range(begun, end):
        seal(store, tau, tau + 1)
        catch_up(store, lane("hash"))
        while not failures and min(len(found) for found in seen_taus.values()) < tau + 1 - begun:
            ended.wait(0.01)  # readers that keep up, as retention supposes
    while not failures and len(looks) < 2:
        ended.wait(0.01)
    ended.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen_taus == {name: list(range(begun, end)) for name in seen_taus}
    assert verify(store).problems == []
    with pytest.raises(RetainedError):
        LogReader(store).events(begun)
