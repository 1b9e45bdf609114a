"""Any polls, commits and restarts: the log holds what the oracle says, each event once, in order."""

import tempfile
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_events import SECOND, Clock, event, poll, stream_config
from oracle_log import OracleLog

from schemas.events import event_schema
from stream.sink import SnapshotSink, log_header
from stream.store.log_reader import LogReader
from stream.store.log_writer import LogWriter
from stream.store.verify_log import verify_log

KEYS = [("a", 0), ("a", 1), ("b", 0)]
Messages = list[tuple[int, list[dict[str, Any]] | None]]


@dataclass
class Script:
    """What the topic partitions hold, and what happens to the job."""

    ids: str
    policy: str
    lateness_s: int
    messages: dict[tuple[str, int], Messages] = field(default_factory=dict)
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
    ids = draw(st.sampled_from(["int", "string"]))
    script = Script(
        ids, draw(st.sampled_from(["next-snapshot", "dead-letter"])), draw(st.sampled_from([0, 2]))
    )
    random, steady = Random(draw(st.integers(0, 10**9))), draw(st.booleans())
    for key in KEYS[: draw(st.integers(1, 3))]:
        script.messages[key] = random_messages(random, ids, steady=steady)
    count, back = st.integers(1, 6), st.sampled_from([0, 0, 0, 1, 3])
    step = st.one_of(
        st.tuples(st.just("poll"), st.sampled_from(list(script.messages)), count, back),
        st.tuples(st.just("round"), count, st.sampled_from([0.0, 11.0])),
        st.tuples(st.just("round"), count, st.just(0.0)),
        st.tuples(st.just("advance"), st.sampled_from([0.0, 11.0])),
        st.just(("crash",)),
        st.just(("flush",)),
        st.just(("seal_all",)),
    )
    script.steps = draw(st.lists(step, min_size=6, max_size=25))
    return script


class Job:
    """The sink under test and the oracle, side by side."""

    def __init__(self, store: str, script: Script) -> None:
        self.script = script
        self.config = stream_config(
            store, ids=script.ids, late=script.policy, lateness_s=script.lateness_s, idle_timeout_s=1e9
        )
        self.clock = Clock()
        self.oracle = OracleLog(SECOND, script.lateness_s * SECOND, script.policy)
        self.oracle.assigned = list(script.messages)
        self.open()

    def open(self) -> None:
        self.writer = LogWriter.open(self.config.store, log_header(self.config))
        self.sink = SnapshotSink(self.writer, self.config, clock=self.clock)
        self.sink.assign(self.script.messages)

    def poll(self, key: tuple[str, int], count: int, back: int) -> None:
        everything = self.script.messages.get(key)
        if everything is None:
            return
        start = self.sink.next_offset(key) or 0
        after = [i for i, (offset, _) in enumerate(everything) if offset >= start]
        first = max(0, (after[0] if after else len(everything)) - back)
        messages = everything[first : first + back + count]
        begin = messages[0][0] if back and messages else start
        end = messages[-1][0] + 1 if messages else start
        batch = poll(
            *key,
            messages,
            first=begin,
            end=max(end, begin),
            high_watermark=10**6,
            ids=self.script.ids,  # type: ignore[arg-type]
        )
        self.sink.offer(batch)
        self.oracle.offer(key, messages, begin, max(end, begin))

    def step(self, what: str, *more: Any) -> None:
        if what == "poll":
            self.poll(*more)
        elif what == "round":
            for key in self.script.messages:
                self.poll(key, more[0], 0)
            self.step("advance", more[1])
        elif what == "crash":
            self.writer.close()
            self.oracle.crash()
            self.open()
        elif what == "advance":
            self.clock.now += more[0]
            must = self.oracle.must_seal()
            record = self.sink.advance()
            assert record is not None or not must, "the watermark closed a snapshot and nothing was committed"
            if record is not None:
                self.oracle.commit()
        elif what == "flush" and self.sink.flush() is not None:
            self.oracle.commit()
        elif what == "seal_all" and self.sink.seal_all() is not None:
            self.oracle.commit(everything=True)


@given(scripts())
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_the_log_equals_the_oracle_for_any_polls_commits_and_restarts(script: Script) -> None:
    with tempfile.TemporaryDirectory() as store:
        job = Job(store, script)
        for step in script.steps:
            job.step(*step)
        for key in script.messages:
            job.poll(key, 99, 0)
        job.step("seal_all")
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
    assert sum(map(len, found.values())) + sum(r["reason"] == "late" for r in rejects) == sum(
        len(rows) for rows in messages if rows is not None
    )
    if log.last is not None:
        assert sum(log.last.refused.values()) == oracle.now.refused
        assert log.last.late == oracle.now.late
        assert {(p.topic, p.partition): p.next for p in log.last.positions} == oracle.now.next
        assert {(p.topic, p.partition): p.max_t_us for p in log.last.positions if p.max_t_us} == {
            key: t for key, t in oracle.now.max_t.items() if t
        }
    assert verify_log(store).problems == []


def script_messages(job: Job) -> list[Messages]:
    return list(job.script.messages.values())
