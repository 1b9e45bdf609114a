"""Once means once beside the log's own writer: on a cluster, in lanes, exports and checkpoints."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pytest
from compacted import grown, seal, seen
from exported import add
from lane_stream import lane
from log_events import poll, stream_config
from no_offsets import NoOffsets, NoWatch
from once import KEY, MESSAGES, NOT_CLEANED_UP, Trouble, behind_record, messages, require_once
from placed import Places
from structlog.testing import capture_logs

from freshet_graph.stream.cluster.log_host import LogHost
from freshet_graph.stream.cluster.plan import ClusterPlan
from freshet_graph.stream.kafka.reader import Start
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.pipeline import holding
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.stream.store.exports import ExportReader, ExportWriter, commit_name
from freshet_graph.stream.store.lane.layout import manifest_name
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.store import verify, verify_exports
from freshet_graph.trainer.session.checkpoint import Checkpoints


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LogHost]]:
    """Opens the log of a store as a worker does; a job whose configuration this process holds."""
    monkeypatch.setattr("freshet_graph.stream.job.open_log.GroupOffsets", NoOffsets)
    monkeypatch.setattr("freshet_graph.stream.job.open_log.TopicWatch", NoWatch)
    with ExitStack() as held:

        def opened(store: str) -> LogHost:
            config = stream_config(store, commit_every_s=1e-9)
            plan = ClusterPlan.of(config, [Start(*KEY, 0, MESSAGES)])
            held.enter_context(holding(plan.id, config))
            return LogHost(plan, config, StreamMetrics(config))

        yield opened


def drive_on_a_cluster(store: str, hosted: Callable[[str], LogHost]) -> None:
    """What a worker does with batches that come again after each failure, from where the log says."""
    host = hosted(store)
    try:
        while (first := host.log.sink.next_offset(KEY) or 0) < MESSAGES:
            host.write(poll(*KEY, messages(first, first + 1), first=first, end=first + 1))
        host.log.sink.seal_all()
    except BaseException:
        host.close(flush=False)
        raise
    host.close()


def test_on_a_cluster_each_message_is_in_the_log_once(
    places: Places, trouble: Trouble, hosted: Callable[[str], LogHost]
) -> None:
    whole = places.address()
    drive_on_a_cluster(whole, hosted)
    numbers = [
        number
        for n in (0, 8, 10)
        for number in range(behind_record(trouble, n), behind_record(trouble, n + 1))
    ]
    for at in numbers:
        store = places.address()
        trouble.begin(lambda number, what, at=at: number == at)  # type: ignore[misc]
        while True:
            with suppress(OSError, StoreError):
                drive_on_a_cluster(store, hosted)
                break
        assert trouble.met
        require_once(trouble, store, at)


# Lanes, exports, checkpoints


class Behind:
    """Meets one operation between a durable record and the next file that is written."""

    def __init__(self, record: str, number: int) -> None:
        self.record, self.left = record, number
        self.state = "before"

    def __call__(self, number: int, what: str) -> bool:
        operation = what.split(maxsplit=1)[0]
        if self.state == "before" and self.record in what and operation in ("link", "put_new"):
            self.state = "named" if operation == "link" else "behind"
        elif self.state == "named" and operation == "fsync":
            self.state = "behind"
        elif self.state == "behind" and operation in ("fsync", "mkdir", "put", "put_new"):
            self.state = "over"
        elif self.state == "behind":
            self.left -= 1
            return self.left == -1
        return False


@pytest.mark.parametrize("tau", [0, 2, 4])
def test_nothing_behind_a_lanes_manifest_fails_it(places: Places, trouble: Trouble, tau: int) -> None:
    wanted = lane("hdrf", base_every=2)
    whole = grown(places.new(), wanted, end=5)  # type: ignore[arg-type]
    expected = seen(whole, "hdrf", 0)  # type: ignore[arg-type]
    for at in count():
        store = places.new()
        seal(store, 0, 5)  # type: ignore[arg-type]
        trouble.begin(Behind(f"hdrf/{manifest_name(tau)}", at))
        with LaneWriter(store, wanted) as writer, capture_logs() as logs:
            assert writer.catch_up() == 5
        if not trouble.met:
            break
        told = [line["event"] for line in logs if line["event"] == NOT_CLEANED_UP]
        assert len(told) == 1 or not (at or places.in_bucket), "but for the record's second name"
        trouble.begin()
        assert seen(store, "hdrf", 0) == expected  # type: ignore[arg-type]
        assert verify(store).problems == []
        if not places.in_bucket:
            LaneWriter(store, wanted).close()
            assert len(list((store / "lanes/hdrf/state").iterdir())) <= 2
    assert at > 2


def test_an_export_whose_record_may_be_there_keeps_its_files_and_nothing_behind_it_fails(
    places: Places, trouble: Trouble
) -> None:
    def export_three(store: Place) -> int:
        for failures in count():
            with suppress(OSError):
                writer = ExportWriter(store, "lane")
                while len(writer.reader.commits) < 3:
                    add(writer)
                    writer.retain(2)
                return failures
        raise AssertionError

    whole = places.new()
    trouble.begin()
    assert export_three(whole) == 0
    total = len(trouble.operations)
    for at, behind in [*((at, False) for at in range(total)), *((at, True) for at in range(3))]:
        for lost in (False, True):
            store = places.new()
            rule = Behind(commit_name(2), at) if behind else lambda number, what, at=at: number == at
            trouble.begin(rule, lost=lost)  # type: ignore[arg-type]
            failures = export_three(store)
            assert trouble.met == 1
            assert failures == 0 or not behind
            trouble.begin()
            assert len(ExportReader(store, "lane").commits) == 3
            assert verify_exports(store, "lane").problems == []


def test_checkpoints_that_cannot_be_removed_do_not_fail_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(monkeypatch, in_bucket=False)
    (tmp_path / "left.pt.tmp").touch()
    checkpoints = Checkpoints(tmp_path, keep=1)
    trouble.begin(lambda number, what: what.startswith("unlink"))
    with capture_logs() as logs:
        for sequence in range(3):
            assert checkpoints.save(sequence, {"n": sequence}).exists()
    assert checkpoints.newest_path() == tmp_path / f"{2:016d}.pt"
    assert [line["event"] for line in logs] == [NOT_CLEANED_UP]
    trouble.begin()
    checkpoints.save(3, {"n": 3})
    assert [path.name for path in tmp_path.iterdir()] == [f"{3:016d}.pt"]
