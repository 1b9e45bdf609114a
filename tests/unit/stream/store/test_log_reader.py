"""The log's reader: memory-mapped truth beside a writer, and typed errors where it isn't whole."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from growing_log import write
from placed import Places, anew, files_of, flipped
from placed import write as replace
from warm_popen import server

import freshet_graph.stream.store.log.ids
from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError, RetainedError
from freshet_graph.stream.store.files.follow import FolderWatch
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.verify.log import verify_log


def test_a_store_without_a_log_is_said_to_be_missing(place: Place) -> None:
    with pytest.raises(ConfigMissingError, match=r"log\.json does not exist. Check the store's path"):
        LogReader(place / "nowhere")


def test_a_reader_sees_new_commits_when_it_refreshes(place: Place) -> None:
    write(place)
    log = LogReader(place)
    assert (log.last, log.snapshots, log.external_ids().to_pylist()) == (None, [], [])
    write(place, 3, 90)
    assert log.snapshots == []
    log.refresh()
    assert [s.tau for s in log.snapshots] == [3, 90]
    assert log.external_ids().to_pylist() == ["n3", "hub", "n90"]
    assert log.nodes(90).to_pylist() == [{"node": 2, "id": "n90"}]
    write(place, 91)
    log.refresh()
    assert log.external_ids().to_pylist() == ["n3", "hub", "n90", "n91"]
    with pytest.raises(RetainedError, match="no sealed snapshot 4; it holds 3 to 91"):
        log.events(4)


def test_events_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    write(tmp_path, 1)
    before = pa.total_allocated_bytes()
    table = LogReader(tmp_path).events(1)
    assert pa.total_allocated_bytes() - before < 256
    assert table["t"].to_pylist() == [10]


def test_external_ids_are_views_and_a_few_of_them_are_asked_for_in_any_order(tmp_path: Path) -> None:
    write(tmp_path, *range(30))
    log = LogReader(tmp_path)
    log.external_ids()
    before = pa.total_allocated_bytes()
    everyone = log.external_ids()
    assert pa.total_allocated_bytes() - before < 256
    asked = np.array([17, 0, 30, 17, 1, 29, 2])
    assert log.external_ids_of(asked).to_pylist() == [everyone[node].as_py() for node in asked]
    assert log.external_ids_of(asked[:0]).equals(pa.array([], pa.string()))


def test_external_ids_of_many_snapshots_are_in_few_pieces(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshet_graph.stream.store.log.ids, "MOST_FILES", 4)
    write(place)
    log = LogReader(place)
    for tau in range(14):
        write(place, tau)
        log.refresh()
        ids = log.external_ids()
        assert ids.num_chunks <= 5
        assert sorted(ids.to_pylist()) == sorted(["hub", *(f"n{seen}" for seen in range(tau + 1))])
        assert ids.equals(LogReader(place).external_ids())


@pytest.mark.parametrize("name", ["events", "nodes"])
def test_a_damaged_snapshot_is_an_error_that_names_it_and_spares_the_others(place: Place, name: str) -> None:
    write(place, 1, 2)
    path = files_of(place)[f"log/snapshots/2/{name}.arrow"]
    content = path.read_bytes()
    replace(path, flipped(content, len(content) // 2))
    with anew(place) as there:
        log = LogReader(there)
        assert log.events(1).num_rows == log.nodes(1).num_rows - 1 == 1
        with pytest.raises(CorruptError, match=rf"{path.parent.name}/{name}\.arrow"):
            getattr(log, name)(2)


def test_following_begins_where_it_is_told_and_ends_by_timeout(place: Place) -> None:
    write(place, 1, 5, 7)
    log = LogReader(place)
    assert [s.tau for s in log.follow(timeout_s=0)] == [1, 5, 7]
    assert [s.tau for s in log.follow(after=4, timeout_s=0)] == [5, 7]
    assert [s.tau for s in log.follow(after=7, timeout_s=0.05)] == []


def test_following_ends_when_told_to_stop(place: Place) -> None:
    write(place, 1)
    seen: list[int] = []
    for sealed in LogReader(place).follow(stop=lambda: bool(seen)):
        seen.append(sealed.tau)
    assert seen == [1]


def write_on(store: str, commits: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    write(place_of(store), *range(1, commits))


@contextmanager
def writing_process(store: str, commits: int) -> Iterator[ForkServerProcess]:
    """Another process that commits snapshots 1, 2, 3 …, each with an open event in the tail as well."""
    process = server().Process(target=write_on, args=(store, commits, dict(os.environ)))
    process.start()
    yield process
    process.join(90)
    assert process.exitcode == 0


def test_a_follower_sees_and_reads_what_another_process_commits(places: Places) -> None:
    address, commits = places.shared_address(), 12 if places.in_bucket else 40
    write(place_of(address), 0)
    log = LogReader(address)
    with writing_process(address, commits):
        seen = []
        for sealed in log.follow(timeout_s=90, stop=lambda: len(seen) == commits):
            assert log.events(sealed.tau)["src"].to_pylist() == [f"n{sealed.tau}"]
            assert log.snapshots[: len(seen) + 1][-1] == sealed
            seen.append(sealed.tau)
    assert seen == list(range(commits))
    assert len(log.external_ids()) == commits + 1


def test_opening_and_verifying_beside_a_writer_finds_no_fault(places: Places) -> None:
    address, commits = places.shared_address(), 12 if places.in_bucket else 30
    write(place_of(address), 0)
    looks = 0
    with writing_process(address, commits) as process:
        while process.is_alive():
            with anew(place_of(address)) as place:
                assert verify_log(place).problems == []
            assert [s.tau for s in LogReader(address).snapshots][:1] == [0]
            looks += 1
    assert looks > 1
    assert len(LogReader(address).snapshots) == commits


def unavailable(*_: object, **__: object) -> None:
    raise OSError("inotify instance limit reached")


@pytest.mark.parametrize("refused", [None, "Observer", "Observer.start"])
def test_a_follower_wakes_up_with_and_without_inotify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str | None
) -> None:
    polling = refused is not None
    if refused is not None:
        monkeypatch.setattr(f"freshet_graph.stream.store.files.follow.{refused}", unavailable)
    write(tmp_path, 1)
    with FolderWatch(tmp_path) as watch:
        assert watch.polling is bool(polling)
    later = threading.Timer(0.3, write, (tmp_path, 2))
    later.start()
    seen: list[int] = []
    for sealed in LogReader(tmp_path).follow(after=1, timeout_s=60, stop=lambda: bool(seen)):
        seen.append(sealed.tau)
    assert seen == [2]
    later.join()


def test_a_folder_that_cannot_be_watched_costs_no_thread_and_no_inotify_instance(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(3):
        with FolderWatch(tmp_path / "nowhere") as watch:
            assert watch.polling
    assert threading.active_count() == before


def test_a_watch_that_ends_while_its_thread_begins_to_read_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FolderWatch(tmp_path) as watch:
        if watch._observer is None:
            pytest.skip("no inotify: the folder is polled")
        (emitter,) = watch._observer.emitters
    emitter.queue_events(0)  # as the thread does that was about to when it was stopped
    assert caplog.records == []


def test_a_watch_wakes_at_a_new_name(tmp_path: Path) -> None:
    with FolderWatch(tmp_path) as watch:
        watch.wait(0)
        (tmp_path / "x").touch()
        deadline = time.monotonic() + 60
        while not watch.polling and not watch.changed.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert watch.polling or watch.changed.is_set()
        watch.wait(0)
        assert not watch.changed.is_set()
