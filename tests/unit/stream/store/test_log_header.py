"""A log that has accepted no event yet follows its configuration: ids and widths, with whatever looks at it meanwhile."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crash_disk import KINDS, CrashDisk, put, states
from log_events import SECOND, event, refusal
from other_machine import elsewhere
from plain_reader import PlainLog
from s3_server import S3Server

from freshet_graph.schemas.config import Lane, StreamConfig
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import FOLLOWED, FORMAT_VERSION, LogHeader, Position
from freshet_graph.stream.job.standby import require_fit
from freshet_graph.stream.kafka.client import NoBrokerError
from freshet_graph.stream.store.errors import ConfigMissingError, LaneBusyError, MismatchError
from freshet_graph.stream.store.files.records import CONFIG_KEYS, read_record
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.store import verify

WRONG = LogHeader(graph="g", interval_us=SECOND, ids="int")
RIGHT = WRONG.model_copy(update={"edge_features": 2, "node_features": 4, "ids": "string", "segments": 2})
LANE = Lane(name="hash", algorithm="hash", parts=2)


def refuse(writer: LogWriter, offset: int) -> None:
    """A commit of one refused message."""
    writer.commit(
        positions={("a", 0): Position(topic="a", partition=0, next=offset + 1)},
        rejects=refusal(offset, "feature_width"),
        refused={"feature_width": 1},
    )


def seal(writer: LogWriter, tau: int) -> None:
    """A commit of a snapshot with an edge and a node event of the right kind of ids and widths."""
    rows = [
        event("a", "b", tau * SECOND, features=[1.0, 2.0]),
        event("a", None, tau * SECOND, features=[0.5] * 4),
    ]
    offset = writer.positions["a", 0].next if writer.positions else 0
    writer.commit(
        positions={("a", 0): Position(topic="a", partition=0, next=offset + 2)},
        seal=[(tau, pa.Table.from_pylist(rows, schema=event_schema("string")))],
    )


def all_refused(store: str | Place, *, messages: int = 2) -> None:
    with LogWriter.open(store, WRONG) as writer:
        for offset in range(messages):
            refuse(writer, offset)


def said(header: LogHeader) -> dict[str, Any]:
    return {
        key: value
        for key, value in header
        if key in ("graph", "interval_us", "ids", "node_features", "edge_features")
    }


def test_a_log_that_refused_everything_takes_the_corrected_configuration_and_goes_on(place: Place) -> None:
    all_refused(place)
    with LogWriter.open(place, RIGHT) as writer:
        assert said(writer.header) == said(RIGHT)
        assert writer.positions["a", 0].next == 2, "what was refused is not read again"
        assert writer.last is not None and writer.last.refused == {"feature_width": 2}
        assert [part.commit for part in writer.unpublished_rejects()] == [0, 1]
        seal(writer, 1)
    assert verify(place).problems == []
    reader = LogReader(place)
    assert said(reader.header) == said(RIGHT)
    assert reader.events(1)["src"].to_pylist() == ["a", "a"]
    with LogWriter.open(place, RIGHT) as again:  # and so it stays
        seal(again, 2)
    for wrong in (WRONG, RIGHT.model_copy(update={"edge_features": 3})):
        with pytest.raises(MismatchError, match=r"log\.json has"):
            LogWriter.open(place, wrong)


def test_it_can_be_corrected_again_and_the_page_says_how_it_is_read(tmp_path: Path) -> None:
    all_refused(tmp_path)
    first = LogReader(tmp_path).header
    for width in (3, 4, 0):
        with LogWriter.open(tmp_path, WRONG.model_copy(update={"edge_features": width})) as writer:
            refuse(writer, 1 + (writer.positions["a", 0].next))
    with LogWriter.open(tmp_path, RIGHT) as writer:
        seal(writer, 5)
    found = read_record(tmp_path / "log/log.json", LogHeader)
    assert (found.format_version, found.begun_as) == (FOLLOWED, first.checksum)
    assert PlainLog(tmp_path).header["edge_features"] == 2
    assert verify(tmp_path).problems == []


def test_a_header_that_never_followed_is_written_as_before(tmp_path: Path) -> None:
    all_refused(tmp_path)
    assert LogReader(tmp_path).header.format_version == FORMAT_VERSION
    assert "begun_as" not in (tmp_path / "log/log.json").read_text()
    LogWriter.open(tmp_path, WRONG).close()
    assert "begun_as" not in (tmp_path / "log/log.json").read_text()
    assert LogReader(tmp_path).last.n == 1, "a commit was made for nothing"  # type: ignore[union-attr]


def sealed_event(writer: LogWriter) -> None:
    writer.commit(seal=[(0, pa.Table.from_pylist([event(1, 2, 5)], schema=event_schema("int")))])


@pytest.mark.parametrize("key", ["ids", "node_features", "edge_features", "segments"])
def test_from_the_first_event_on_it_is_refused(place: Place, key: str) -> None:
    """A sealed one; open ones are those of ``test_log_writer``."""
    with LogWriter.open(place, WRONG) as writer:
        sealed_event(writer)
    with pytest.raises(
        MismatchError, match=f"log.json has {CONFIG_KEYS[key]} = .* the configuration asks for"
    ):
        LogWriter.open(place, WRONG.model_copy(update={key: getattr(RIGHT, key)}))


@pytest.mark.parametrize("change", [{"graph": "h"}, {"interval_us": 2 * SECOND}])
def test_graph_and_interval_are_fixed_from_the_first_commit_on(place: Place, change: dict[str, Any]) -> None:
    all_refused(place)
    with pytest.raises(MismatchError, match=f"log.json has {CONFIG_KEYS[next(iter(change))]} = "):
        LogWriter.open(place, RIGHT.model_copy(update=change))
    assert said(LogReader(place).header) == said(WRONG)


def test_who_reads_meanwhile_sees_the_header_of_the_first_event(place: Place) -> None:
    all_refused(place)
    reader = LogReader(place)
    with LogWriter.open(place, RIGHT) as writer:
        seal(writer, 1)
    reader.refresh()
    assert said(reader.header) == said(RIGHT)
    assert reader.external_ids().to_pylist() == ["a", "b"]
    assert reader.events(1)["features"].to_pylist() == [[1.0, 2.0], [0.5] * 4]


def test_a_lane_beside_it_follows_and_a_reader_of_the_empty_lane_is_told_to_open_it_again(
    place: Place,
) -> None:
    all_refused(place)
    LaneWriter(place, LANE).close()
    early = LaneReader(place, "hash")
    with LogWriter.open(place, RIGHT) as writer:
        seal(writer, 1)
    with LaneWriter(place, LANE) as lane:
        assert (lane.header.node_features, lane.header.edge_features) == (4, 2)
        assert lane.catch_up() == 1
    with pytest.raises(ConfigMissingError, match=r"while it was empty\. Open the current lane"):
        early.refresh()
    assert LaneReader(place, "hash").header.node_features == 4
    assert verify(place).problems == []


def config(store: Path, width: int, graph: str = "g") -> StreamConfig:
    return StreamConfig.model_validate(
        {
            "graph": graph,
            "store": str(store),
            "kafka": {"bootstrap": "127.0.0.1:9", "topics": [{"name": "a"}]},
            "snapshots": {"interval_s": 1},
            "features": {"edge": width},
            "lanes": [LANE.model_dump()],
        }
    )


def test_a_job_that_stands_by_takes_it_likewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> None:
        raise NoBrokerError("no broker answers")

    monkeypatch.setattr("freshet_graph.stream.job.standby.topic_bounds", nobody)
    all_refused(tmp_path)
    require_fit(config(tmp_path, 2))
    assert said(LogReader(tmp_path).header) == said(WRONG), "who stands by changes nothing"
    with pytest.raises(MismatchError, match=r"log\.json has graph"):
        require_fit(config(tmp_path, 2, graph="h"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_before_any_file_operation_leaves_one_header_or_the_other_whole(
    kind: str, tmp_path: Path
) -> None:
    all_refused(tmp_path / "first")
    disk = CrashDisk(tmp_path / "first")
    with disk.watched(), LogWriter.open(tmp_path / "first", RIGHT) as writer:
        disk.acknowledge()
        seal(writer, 1)
        disk.acknowledge()
    headers = set()
    for number, (moment, tree) in enumerate(states(disk.moments, kind, alone=True)):
        store = put(tree, tmp_path / str(number))
        where = f"{kind} before: {moment.operation}"
        assert verify(store).problems == [], where
        reader = LogReader(store)
        headers.add(reader.header.edge_features)
        if moment.done:
            assert said(reader.header) == said(RIGHT), where
        assert len(reader.snapshots) >= (moment.done > 1), where
        with LogWriter.open(store, RIGHT) as writer:
            if not writer.snapshots:
                seal(writer, 1)
        assert verify(store).problems == [], where
        assert LogReader(store).last.refused == {"feature_width": 2}, where  # type: ignore[union-attr]
    assert headers == {0, 2}


def test_a_disk_that_refuses_any_operation_of_it_costs_a_second_try_and_nothing_else(tmp_path: Path) -> None:
    all_refused(tmp_path / "first")
    disk = CrashDisk(tmp_path / "first")
    with disk.watched():
        LogWriter.open(tmp_path / "first", RIGHT).close()
    assert len(disk.moments) > 8
    for number in range(len(disk.moments) - 1):
        all_refused(store := tmp_path / str(number))
        disk = CrashDisk(store)
        disk.refuse(number)
        with disk.watched():
            try:
                LogWriter.open(store, RIGHT).close()
            except OSError:
                LogWriter.open(store, RIGHT).close()
        assert said(LogReader(store).header) == said(RIGHT), disk.refused
        assert verify(store).problems == [], disk.refused


def test_a_former_writer_in_a_bucket_brings_no_event_of_the_old_kind_under_the_new_header(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3.store(lease_s=1)
    back = elsewhere(monkeypatch)
    paused = LogWriter.open(store, WRONG, writer_id="paused")
    refuse(paused, 0)
    paused.lock.fall_silent()  # type: ignore[attr-defined]
    back()
    with LogWriter.open(store, RIGHT, writer_id="second") as second:
        monkeypatch.setattr(paused.lock, "require", lambda: None)  # it looked at its lease just before
        with pytest.raises(LaneBusyError, match="was made by second while paused held"):
            sealed_event(paused)
        seal(second, 1)
    assert LogReader(store).events(1)["src"].to_pylist() == ["a", "a"]
