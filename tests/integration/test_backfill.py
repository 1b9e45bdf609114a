"""Past events from files, then Kafka: every event once, whatever both have in common and whenever the process dies."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaAdminClient, TopicPartition
from log_lines import error_of
from streaming import (
    DAY_US,
    T0,
    command,
    configuration,
    edge,
    fresh_topic,
    log_table,
    read_topic,
    result,
    run_job,
    send,
    settings,
    started,
    triples,
    written,
)
from typer.testing import CliRunner

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.cli import app
from freshet_graph.stream.job.backfill import backfill
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.sink import SEAL_SNAPSHOTS
from freshet_graph.stream.snapshots.border import HISTORY
from freshet_graph.stream.store.crash import VARIABLE
from freshet_graph.stream.store.errors import OffsetGapError, StoreError
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.log import verify_log

pytestmark = pytest.mark.integration

Event = tuple[int, int, int]


def events(count: int = 1200, days: int = 12, seed: int = 5) -> list[Event]:
    """(src, dst, t in seconds) in order of time, some at equal times; src tells them apart."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, days * 86_400, count)) // 3600 * 3600 + T0
    return [
        (i, int(d), int(t)) for i, (d, t) in enumerate(zip(rng.integers(0, 50, count), times, strict=True))
    ]


def parquet(path: Path, rows: list[Event], *, row_group: int = 100) -> Path:
    src, dst, t = zip(*rows, strict=True)
    pq.write_table(pa.table({"src": src, "dst": dst, "t": t}), path, row_group_size=row_group)
    return path


def messages(rows: list[Event]) -> list[bytes | None]:
    return [edge(*row) for row in rows]


def logged(store: Path) -> list[Event]:
    return [(src, dst, t // 1_000_000) for _, src, dst, t in triples(log_table(store))]


def test_history_and_an_overlapping_topic_make_the_whole_stream_once(kafka: str, tmp_path: Path) -> None:
    everything = events()
    topic = fresh_topic(kafka, partitions=2)
    past = [
        parquet(tmp_path / "new.parquet", everything[400:700]),
        parquet(tmp_path / "old.parquet", everything[:400]),
    ]
    for partition in (0, 1):  # Kafka has the last 800, of which the files have 300
        send(kafka, topic, messages(everything[400 + partition :: 2]), partition=partition)
    config = configuration(tmp_path / "store", kafka, topic, kafka={"group": topic})
    # A border within an hour that has several events, two hours before the files end.
    until = everything[690][2] - 7200
    told = result("backfill", *past, "--config", written(tmp_path, config), "--until", str(until))
    before = [event for event in everything if event[2] < until]
    assert (told["rows"], told["events"], told["refused"]) == (700, len(before), 0)
    assert (told["after"], told["until"]) == (700 - len(before), until)
    assert len(LogReader(tmp_path / "store").snapshots) == told["snapshots"] > 3
    send(kafka, topic, [edge(9999, 1, T0)])  # written after the files were made: late, not a repetition
    ran, metrics = run_job(config)
    assert (ran.events, ran.late, ran.refused) == (1200 - len(before) + 1, 1, 0)
    assert sorted(logged(tmp_path / "store")) == sorted([*everything, (9999, 1, T0)])
    skipped = metrics.registry.get_sample_value(
        "freshet_stream_in_history_total", {"graph": "test", "topic": topic}
    )
    overlap = sum(event[2] < until for event in everything[400:])
    last = LogReader(tmp_path / "store").last
    assert last is not None and skipped == last.in_history == overlap > 200
    assert verify_log(tmp_path / "store").problems == []
    found = inspect(tmp_path / "store")
    assert found["offsets"][HISTORY[0]] == {"0": 700}
    assert found["history"] == {"until": until, "rows": 700, "read": 700, "skipped_in_kafka": overlap}
    again, _ = run_job(config)
    assert (again.events, again.late) == (0, 0)
    assert group_offsets(kafka, topic) == {(topic, 0): 401, (topic, 1): 400}


def test_a_log_is_cut_again_from_its_own_events_and_reading_continues_from_its_offsets(
    kafka: str, tmp_path: Path
) -> None:
    everything, first = events(), 900
    topic, old = fresh_topic(kafka, partitions=2), tmp_path / "old"
    for partition in (0, 1):
        send(kafka, topic, messages(everything[partition:first:2]), partition=partition)
    config = configuration(old, kafka, topic)
    (tmp_path / "before").mkdir()
    with started("run", "--config", written(tmp_path / "before", config), log=tmp_path / "log") as job:
        deadline = time.monotonic() + 120
        while not (old / "log" / "log.json").exists() or read_so_far(old) < first:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        job.send_signal(signal.SIGTERM)
    last = LogReader(old).last
    assert last is not None and 0 < last.tail_events < first, (
        "some snapshots are sealed, and the last ones are open"
    )

    hours = configuration(tmp_path / "new", kafka, topic, snapshots={"interval_s": 10_800})
    told = result("backfill", old, "--config", written(tmp_path, hours))
    assert (told["rows"], told["events"], told["refused"]) == (first, first, 0)
    assert result("backfill", old, "--config", written(tmp_path, hours))["rows"] == first, (
        "a repetition resumes"
    )
    for partition in (0, 1):
        send(kafka, topic, messages(everything[first + partition :: 2]), partition=partition)
    ran, _ = run_job(hours)
    assert (ran.events, ran.refused) == (len(everything) - first, 0)
    assert sorted(logged(tmp_path / "new")) == sorted(everything)
    new = LogReader(tmp_path / "new")
    assert new.header.interval_us == 10_800 * 1_000_000
    for snapshot in new.snapshots:
        taus = new.events(snapshot.tau)["t"].to_numpy() // new.header.interval_us
        assert set(taus.tolist()) == {snapshot.tau}
    assert verify_log(tmp_path / "new").problems == []
    same = command("backfill", old, "--config", written(tmp_path, config))
    assert (same.returncode, "is the store of the configuration" in error_of(same.stderr)) == (1, True)
    both = command("backfill", old, "--until", "0", "--config", written(tmp_path, hours))
    assert (both.returncode, "a store is cut again as a whole" in error_of(both.stderr)) == (1, True)


def read_so_far(store: Path) -> int:
    return sum(position.next for position in LogReader(store).positions.values())


def group_offsets(kafka: str, group: str) -> dict[tuple[str, int], int]:
    admin = KafkaAdminClient(**settings(kafka))
    offsets = admin.list_group_offsets(group)
    admin.close()
    return {(tp.topic, tp.partition): meta.offset for tp, meta in offsets.get(group, offsets).items()}


def test_a_killed_backfill_goes_on_where_it_ended_and_nothing_shows_it(kafka: str, tmp_path: Path) -> None:
    everything = events(900)
    topic = fresh_topic(kafka)
    send(kafka, topic, messages(everything[500:]))
    past = [parquet(tmp_path / f"{i}.parquet", everything[100 * i : 100 * i + 100]) for i in range(6)]
    sealed = {}
    for name, points in (
        ("undisturbed", []),
        (
            "killed",
            ["record.synced:2", "file.renamed:3", "commit.done:3"],
        ),
    ):
        folder = tmp_path / name
        folder.mkdir()
        config = configuration(folder / "store", kafka, topic, snapshots={"commit_every_s": 0.001})
        backfill = ["backfill", *past, "--config", written(folder, config)]
        backfill += ["--until", str(everything[599][2])]  # a moment that the files have in part
        for point in points:
            killed = command(*backfill, secrets={VARIABLE: point})
            assert killed.returncode == -signal.SIGKILL, f"{point} was not reached: {killed.stderr}"
        if points:
            with pytest.raises(StoreError, match=r"rows of its history .* Run freshet-stream backfill again"):
                run_job(config)
        assert command(*backfill).returncode == 0
        ran, _ = run_job(config)
        assert (ran.events, ran.late) == (sum(event[2] >= everything[599][2] for event in everything), 0)
        assert sorted(logged(folder / "store")) == sorted(everything)
        assert verify_log(folder / "store").problems == []
        snapshots = folder / "store" / "log" / "snapshots"
        sealed[name] = {
            str(path.relative_to(snapshots)): path.read_bytes() for path in snapshots.rglob("*.arrow")
        }
    assert sealed["killed"] == sealed["undisturbed"]


def test_named_offsets_are_the_point_whatever_the_times(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    everything = events(60)
    send(kafka, topic, messages(everything))
    past = parquet(tmp_path / "past.parquet", everything[:25])
    config = configuration(
        tmp_path / "store", kafka, topic, kafka={"start": "latest"}, snapshots={"lateness_s": 30 * 86_400.0}
    )
    with pytest.raises(
        Failure, match=r"the topics have messages already, and the files end at 2004-.* Or name offsets"
    ):
        backfill(StreamConfig(**config), [past])
    with pytest.raises(Failure, match=r"kafka.start is latest"):
        backfill(StreamConfig(**config), [past], until_us=DAY_US)
    with pytest.raises(Failure, match=r"lies after the partition's end\. Name one up to 60"):
        backfill(StreamConfig(**config), [past], offsets={(topic, 0): 61})
    with pytest.raises(Failure, match=rf"They are {topic}/0"):
        backfill(StreamConfig(**config), [past], offsets={(topic, 3): 25})
    backfill(StreamConfig(**config), [past], offsets={(topic, 0): 25})
    ran, _ = run_job(config)
    assert (ran.events, ran.late) == (35, 0)
    assert sorted(logged(tmp_path / "store")) == sorted(everything)


def test_snapshots_are_sealed_as_rows_are_read_and_each_commit_is_progress(
    kafka: str, tmp_path: Path
) -> None:
    """The last snapshot stays open: the border lies within its second."""
    rows = [(i, i + 1, T0 + i) for i in range(400)]
    past = [parquet(tmp_path / "0.parquet", rows[:200]), parquet(tmp_path / "1.parquet", rows[200:])]
    config = configuration(tmp_path / "store", kafka, fresh_topic(kafka), snapshots={"interval_s": 1.0})
    seen: list[tuple[int, int, int]] = []
    backfill(StreamConfig(**config), past, progress=lambda *counts: seen.append(counts))
    assert {rows for _, rows, _ in seen} == {400}
    assert {read: sealed for read, _, sealed in seen} == {200: 199, 400: 399}
    assert max(np.diff([0, *(sealed for *_, sealed in seen)])) == SEAL_SNAPSHOTS


def test_a_file_in_any_order_has_no_late_events_and_wrong_rows_become_dead_letters(
    kafka: str, tmp_path: Path
) -> None:
    topic, dead = fresh_topic(kafka), fresh_topic(kafka)
    everything = events(300)
    shuffled = [everything[i] for i in np.random.default_rng(1).permutation(300)]
    wrong = [*shuffled[:100], (7, 7, 10**9 * 300), *shuffled[100:]]  # the year 11476
    past = parquet(tmp_path / "past.parquet", wrong)
    config = configuration(
        tmp_path / "store", kafka, topic, kafka={"dead_letters": dead}, snapshots={"late": "dead-letter"}
    )
    done = backfill(StreamConfig(**config), [past])
    assert (done.events, done.refused, done.history.after) == (300, 1, 0)
    assert done.history.until_us == everything[-1][2] * 1_000_000 + 1
    assert done.history.disorder_us > 5 * DAY_US
    ran, _ = run_job(config)
    assert (ran.events, ran.late) == (0, 0)
    assert sorted(logged(tmp_path / "store")) == everything
    [(key, value)] = read_topic(kafka, dead)
    assert key == b"file:history/0/100"
    assert value is not None and b"time_out_of_bounds" in value


def test_messages_that_retention_took_from_after_the_history_are_a_gap(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, messages(events(20)))
    admin = KafkaAdminClient(**settings(kafka))
    admin.delete_records({TopicPartition(topic, 0): 5})
    admin.close()
    past = parquet(tmp_path / "past.parquet", events(10))  # of 2004; the broker's messages are of today
    until = (events(10)[-1][2] + 1) * 1_000_000
    config = configuration(tmp_path / "store", kafka, topic)
    with pytest.raises(
        OffsetGapError, match=r"begins at offset 5 with a message of .* but the history ends at 2004"
    ):
        backfill(StreamConfig(**config), [past], until_us=until)
    config["kafka"]["on_gap"] = "skip"
    assert backfill(StreamConfig(**config), [past], until_us=until).events == 10
    config["kafka"]["on_gap"] = "fail"
    with pytest.raises(OffsetGapError, match=r"kafka.on_gap: skip"):
        run_job(config)


def test_only_the_same_files_go_on_and_only_in_a_log_without_kafka(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    everything = events(40)
    one, two = (
        parquet(tmp_path / "1.parquet", everything[:20]),
        parquet(tmp_path / "2.parquet", everything[20:]),
    )
    config = configuration(tmp_path / "store", kafka, topic)
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(one.read_bytes())
    with pytest.raises(Failure, match=r"copy.parquet has the same content as .*1.parquet, and its events"):
        backfill(StreamConfig(**config), [one, two, copy])
    first = backfill(StreamConfig(**config), [one])
    again = backfill(StreamConfig(**config), [one.rename(tmp_path / "moved.parquet")])
    assert (again.rows, again.events, again.history) == (0, 20, first.history)
    with pytest.raises(Failure, match=r"1.parquet as it was then is not among the files given"):
        backfill(StreamConfig(**config), [two])
    with pytest.raises(Failure, match=r"1.parquet only\. Choose"):
        backfill(StreamConfig(**config), [tmp_path / "moved.parquet", two])
    with pytest.raises(Failure, match=r"--until is 1970-01-01"):
        backfill(StreamConfig(**config), [tmp_path / "moved.parquet"], until_us=0)
    backfill(StreamConfig(**config), [tmp_path / "moved.parquet"])
    send(kafka, topic, [*messages(everything[30:]), b"{"])
    ran, _ = run_job(config)
    assert (ran.events, ran.refused) == (10, 1)
    after = backfill(StreamConfig(**config), [tmp_path / "moved.parquet"])
    assert (after.events, after.refused, after.rows) == (20, 0, 0), "not Kafka's, too"
    send(kafka, topic, messages(everything[:1]))
    live = configuration(tmp_path / "live", kafka, topic)
    run_job(live)
    with pytest.raises(Failure, match=r"has messages from Kafka already"):
        backfill(StreamConfig(**live), [two])


def test_run_waits_for_a_backfill_that_failed_before_it_read_anything_and_the_corrected_one_works(
    kafka: str, tmp_path: Path
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    path = written(tmp_path, configuration(store, kafka, topic))
    file = tmp_path / "past.csv"

    def said(*arguments: str | Path, code: int) -> str:
        done = CliRunner().invoke(app, [*map(str, arguments), "--config", str(path), "--json"])
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.stderr

    assert json.loads(said("run", "--until-idle", "0.3", code=0))["events"] == 0
    assert LogReader(store).last is not None, "a commit that names offsets, and nothing else"
    for wrong in ("src,dst\n1,2\n", None):
        if wrong is not None:
            file.write_text(wrong)
        else:
            file.unlink()
        said("backfill", file, code=1)
        told = said("run", "--until-idle", "0.3", code=1)
        assert "a backfill of this log (past.csv) has failed" in told
        assert "Run freshet-stream backfill again" in told
    file.write_text(f"src,dst,t\n1,2,{T0}\n3,4\n5,6,{T0 + 1}\n7,8")
    done = json.loads(said("backfill", file, code=0))
    assert (done["events"], done["refused"]) == (2, 2)
    send(kafka, topic, [edge(9, 9, T0 + 2)])
    assert json.loads(said("run", "--until-idle", "0.3", code=0))["events"] == 1
    assert [src for _, src, _, _ in triples(log_table(store))] == [1, 5, 9]
    shown = json.loads(CliRunner().invoke(app, ["inspect", str(store), "--json"]).stdout)
    assert shown["refused_by_reason"]["wrong_type"]["example"].endswith(
        "it has 2 columns, but the header has 3: '3,4'"
    )
    assert json.loads(CliRunner().invoke(app, ["verify", str(store), "--json"]).stdout)["ok"]
