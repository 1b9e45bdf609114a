"""Any polls, outages, commits, failures and restarts: the log holds what the oracle says, each event once, in order."""

import errno
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_events import SECOND, Clock, event, poll, stream_config
from oracle_log import OracleLog, Rules

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import CommitRecord, HistoryEnd, HistoryFile, HistoryRecord
from freshet_graph.stream.microbatch import Quiet
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.log import verify_log

MEMORY = Path("/dev/shm")
KEYS = [("a", 0), ("a", 1), ("b", 0)]
Key = tuple[str, int]
Messages = list[tuple[int, list[dict[str, Any]] | None]]


@dataclass
class Script:
    """What the topic partitions hold, and what happens to the job.

    Attributes:
        known: How many of the partitions exist from the start; others are found by a step.
        written: All messages are there from the start; else rounds write them.
    """

    ids: str
    rules: Rules
    known: int = 1
    written: bool = True
    messages: dict[Key, Messages] = field(default_factory=dict)
    steps: list[tuple[Any, ...]] = field(default_factory=list)


def random_messages(random: Random, ids: str, *, steady: bool) -> Messages:
    """One topic partition: offsets with holes, several rows a message, refused ones, any kind of event."""
    names: list[Any] = list(range(-3, 7)) if ids == "int" else ["", "a", "ü", "b" * 256, "0"]
    jumps = [0, 0, 1, 300_000, 400_000, SECOND] * 3 + [7 * SECOND, 10**13]
    jumps += [] if steady else [-300_000, -SECOND, -3 * SECOND] * 2
    kinds: list[dict[str, Any]] = [
        {},
        {"op": -1},
        {"weight": 0.5, "label": 3},
        {"features": [1.0, 2.0]},
        {"op": 0, "features": [7.0], "feature_offset": 1, "event_id": "x"},
    ]
    messages: Messages = []
    offset, now = random.randrange(5), random.randrange(-2, 2) * SECOND
    for _ in range(random.randrange(1, 25)):
        rows = []
        for _ in range(random.choice([1, 1, 2, 3])):
            now += random.choice(jumps)
            more = random.choice(kinds)
            rows.append(
                event(
                    random.choice(names), random.choice(names) if more.get("op") != 0 else None, now, **more
                )
            )
        messages.append((offset, None if random.random() < 0.1 else rows))
        offset += random.choice([1, 1, 1, 4])
    return messages


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    random, steady = Random(draw(st.integers(0, 10**9))), draw(st.booleans())
    rules = Rules(
        interval=SECOND,
        lateness=draw(st.sampled_from([0, 2])) * SECOND,
        policy=draw(st.sampled_from(["next-snapshot", "dead-letter"])),
        idle_timeout_s=draw(st.sampled_from([1e9, 8.0, 8.0])),
        idle_seal_s=draw(st.sampled_from([None, None, 12.0])),
    )
    script = Script(draw(st.sampled_from(["int", "string"])), rules)
    for key in KEYS[: draw(st.integers(1, 3))]:
        script.messages[key] = random_messages(random, script.ids, steady=steady)
    script.known = draw(st.integers(1, len(script.messages)))
    if draw(st.booleans()):
        every = [
            (offset, row["t"]) for m in script.messages.values() for offset, rows in m for row in rows or []
        ]
        rules.until = random.choice(every)[1] + random.choice([0, 0, 1]) if every else 0
        # Partitions found later had no end when the history was read.
        last = max((offset for offset, _ in every), default=0)
        rules.ends = {key: random.randint(0, last) for key in list(script.messages)[: script.known]}
    script.written = draw(st.booleans())
    count, back = st.integers(1, 6), st.sampled_from([0, 0, 0, 1, 3])
    passed, wait = st.sampled_from([0.0, 0.0, 4.0, 11.0, 40.0]), st.booleans()
    step = st.one_of(
        st.tuples(st.just("poll"), st.sampled_from(list(script.messages)), count, back),
        st.tuples(st.just("round"), count, st.sampled_from([0.0, 11.0]), wait),
        st.tuples(st.just("round"), count, st.just(0.0), wait),
        st.tuples(st.just("quiet"), st.integers(1, 6), passed, st.sampled_from([True, True, False])),
        st.tuples(st.just("advance"), passed, wait),
        st.sampled_from([("crash", False), ("crash", True), ("find",), ("flush",), ("seal_all",)]),
        st.tuples(st.just("disk"), st.booleans()),
    )
    script.steps = draw(st.lists(step, min_size=6, max_size=30))
    return script


class Job:
    """The sink under test and the oracle, side by side."""

    def __init__(self, store: str, script: Script) -> None:
        self.script, rules = script, script.rules
        self.config = stream_config(
            store,
            ids=script.ids,  # type: ignore[arg-type]
            late=rules.policy,
            lateness_s=rules.lateness / SECOND,
            idle_timeout_s=rules.idle_timeout_s,
            idle_seal_s=rules.idle_seal_s,
        )
        self.clock = Clock()
        self.oracle = OracleLog(rules)
        self.oracle.assigned = list(script.messages)[: script.known]
        self.written = {key: len(m) if script.written else 0 for key, m in script.messages.items()}
        self.disk_full = self.waits = (
            False  # whether the next try of a commit is refused, and whether another one follows
        )
        self.everything = False
        self.gate = threading.Event()  # a commit on its thread waits before it
        if rules.until is not None:
            with LogWriter.open(store, log_header(self.config)) as writer:
                writer.begin_with(history(rules))
        self.open()

    def open(self) -> None:
        self.writer = LogWriter.open(self.config.store, log_header(self.config))
        self.sink = SnapshotSink(self.writer, self.config, clock=self.clock, refused=self.refused)
        self.sink.assign(self.oracle.assigned)
        commit, begin = self.writer.commit, self.sink._begin

        def gated(**arguments: Any) -> CommitRecord:
            self.gate.wait()
            if self.disk_full:
                self.disk_full = False
                raise OSError(errno.ENOSPC, "No space left on device")
            return commit(**arguments)

        def begun(closed: int | None) -> None:
            allowed = self.oracle.closed()
            if self.everything and self.oracle.now.open:
                top = max(row.tau for row in self.oracle.now.open)
                allowed = top if allowed is None else max(top, allowed)
            assert closed == allowed
            self.oracle.begin(closed)
            begin(closed)

        self.writer.commit = gated  # type: ignore[method-assign]
        self.sink._begin = begun  # type: ignore[method-assign]

    def refused(self, error: OSError) -> None:
        if not self.waits:
            raise error

    def restart(self) -> None:
        commits = self.writer.last
        self.gate.set()
        self.sink.close()
        self.writer.close()
        self.disk_full = False
        self.oracle.crash(made=self.writer.last is not commits)
        self.open()

    def poll(self, key: Key, count: int, back: int) -> None:
        if key not in self.oracle.assigned:
            return
        everything = self.script.messages[key][: self.written[key]]
        start = self.sink.next_offset(key) or 0
        after = [i for i, (offset, _) in enumerate(everything) if offset >= start]
        first = max(0, (after[0] if after else len(everything)) - back)
        messages = everything[first : first + back + count]
        begin = messages[0][0] if back and messages else start
        end = max(messages[-1][0] + 1 if messages else start, begin)
        unread = end < self.end(key)
        self.sink.offer(
            poll(
                *key,
                messages,
                first=begin,
                end=end,
                high_watermark=max(end, self.end(key)),
                ids=self.script.ids,  # type: ignore[arg-type]
            )
        )
        fresh = end > max(start, begin)
        self.oracle.offer(key, messages, begin, end)
        self.oracle.heard(key, self.clock.now, unread=unread, messages=fresh)

    def end(self, key: Key) -> int:
        """Offset after what was written so far."""
        written = self.written[key]
        return self.script.messages[key][written - 1][0] + 1 if written else 0

    def look(self, key: Key, *, answered: bool) -> None:
        """A poll that brings nothing: whether there is nothing, or nobody answers."""
        at = self.sink.next_offset(key) or 0
        unread = at < self.end(key)
        said = self.oracle.nothing_unread.get(key, [])
        quiet = None
        if answered and not unread:
            quiet = Quiet(0, 0)
        elif not unread and said:
            quiet = Quiet(self.clock.now - said[0], self.clock.now - said[-1])
        high = at + 1 if unread else at
        self.sink.offer(
            poll(*key, [], first=at, end=at, high_watermark=high, ids=self.script.ids, quiet=quiet)  # type: ignore[arg-type]
        )
        self.oracle.offer(key, [], at, at)
        self.oracle.heard(key, self.clock.now, unread=unread, messages=False, answered=answered)

    def ask(self, action: Callable[[], CommitRecord | None]) -> CommitRecord | None:
        """Have the sink do something that may end a commit, or fail at it."""
        try:
            record = action()
        except OSError:
            self.restart()
            return None
        if record is not None:
            self.oracle.made()
        return record

    def advance(self, *, wait: bool) -> None:
        if wait:
            self.gate.set()
        else:
            self.gate.clear()
        free, full = self.sink._commit is None, self.disk_full and not self.waits
        must = self.oracle.must_seal() and self.clock.now >= self.sink._next_seal_s
        record = self.ask(lambda: self.sink.advance(wait=wait))
        if wait and free and must and not full:
            assert record is not None, "the watermark closed a snapshot and nothing was committed"

    def step(self, what: str, *more: Any) -> None:
        if what == "poll":
            self.poll(*more)
        elif what == "round":
            for key in list(self.oracle.assigned):
                self.written[key] = min(len(self.script.messages[key]), self.written[key] + more[0])
                self.poll(key, more[0], 0)
            self.step("advance", more[1], more[2])
        elif what == "quiet":
            for _ in range(more[0]):
                self.clock.now += more[1]
                for key in self.oracle.assigned:
                    self.look(key, answered=more[2])
        elif what == "find":
            self.oracle.assigned = list(self.script.messages)[: len(self.oracle.assigned) + 1]
            self.sink.assign(self.oracle.assigned)
        elif what == "disk":
            self.disk_full, self.waits = True, more[0]
        elif what == "crash":
            if more[0]:  # a commit under way doesn't get through
                self.disk_full, self.waits = True, False
            self.restart()
        elif what == "advance":
            self.clock.now += more[0]
            self.advance(wait=more[1])
        else:
            self.gate.set()
            self.everything = what == "seal_all"
            self.ask(self.sink.seal_all if self.everything else self.sink.flush)
            self.everything = False


def history(rules: Rules) -> HistoryRecord:
    """A history without rows: what matters here is where it ends."""
    assert rules.until is not None
    ends = [
        HistoryEnd(topic=topic, partition=partition, start=None, end=end)
        for (topic, partition), end in rules.ends.items()
    ]
    file = HistoryFile(name="past.parquet", rows=0, bytes=0, checksum="")
    return HistoryRecord(files=[file], until_us=rules.until, rows=0, after=0, disorder_us=0, ends=ends)


@given(scripts())
@settings(
    max_examples=55, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_the_log_equals_the_oracle_for_any_polls_commits_and_restarts(script: Script) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as store:
        job = Job(store, script)
        for step in script.steps:
            job.step(*step)
        while len(job.oracle.assigned) < len(script.messages):
            job.step("find")
        for key, messages in script.messages.items():
            job.written[key] = len(messages)
            job.poll(key, 99, 0)
        job.disk_full = False
        job.step("seal_all")
        job.sink.close()
        job.writer.close()
        compare(store, job)


def compare(store: str, job: Job) -> None:
    log, oracle = LogReader(store), job.oracle
    schema = event_schema(job.config.ids)
    expected = {
        tau: pa.Table.from_pylist(rows, schema=schema).to_pylist() for tau, rows in oracle.snapshots().items()
    }
    dense = {name: i for i, name in enumerate(oracle.dense())}
    found = {}
    for snapshot in log.snapshots:
        rows = log.events(snapshot.tau).to_pylist()
        for row in rows:
            assert row.pop("src_node") == dense[row["src"]]
            assert row.pop("dst_node") == (-1 if row["dst"] is None else dense[row["dst"]])
        found[snapshot.tau] = rows
    assert found == expected
    assert list(found) == sorted(found)
    assert log.external_ids().to_pylist() == list(dense)
    with LogWriter.open(store, log_header(job.config)) as writer:
        rejects = [row for part in writer.unpublished_rejects() for row in part.table.to_pylist()]
        assert writer.open_tail().num_rows == 0
    assert sorted((r["topic"], r["partition"], r["offset"], r["reason"]) for r in rejects) == sorted(
        oracle.now.rejects
    )
    messages = [rows for everything in script_messages(job) for _, rows in everything]
    late = sum(r["reason"] == "late" for r in rejects)
    assert sum(map(len, found.values())) + late + oracle.now.in_history == sum(
        len(rows) for rows in messages if rows is not None
    ), "every event is in exactly one of log, rejects and history"
    if log.last is not None:
        assert sum(log.last.refused.values()) == oracle.now.refused
        assert log.last.late == oracle.now.late
        assert log.last.in_history == oracle.now.in_history
        assert {(p.topic, p.partition): p.next for p in log.last.positions} == oracle.now.next
        assert {(p.topic, p.partition): p.max_t_us for p in log.last.positions if p.max_t_us} == {
            key: t for key, t in oracle.now.max_t.items() if t
        }
    assert verify_log(store).problems == []


def script_messages(job: Job) -> list[Messages]:
    return list(job.script.messages.values())
