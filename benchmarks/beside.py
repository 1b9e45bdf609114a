"""Everything beside everything: does any reader, writer or verify stumble over what another process does to the store?

    python benchmarks/beside.py [--minutes 0.5] [--bucket] [--seed 0]

A thread each, in two processes: a log writer and lane writers that are closed and opened all the time, a compaction after the
other that drops and folds what it may, a lane that is removed and built again, exports that are written and pruned, and beside
them verify, a follower of the log, windows over lanes, and everything that reads a whole store. Events follow from the number
of their snapshot, so what readers see is compared with what must be there. --bucket: in moto's server on this machine.

Printed: what each of them did, and every difference and unexpected error, of which there must be none. Each must have done
something.
"""

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from s3_server import running
from store_truth import HEADER, Truth, events, refused

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.exports import ExportCommit
from freshet_graph.schemas.store import Position
from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.errors import ConfigMissingError, LaneBusyError, RetainedError
from freshet_graph.stream.store.exports import ExportReader, ExportWriter
from freshet_graph.stream.store.graph import read_graph
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.store_events import store_events
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.stream.store.window.view import WindowView
from freshet_graph.trainer.exports.embeddings import load_embeddings

LANES = (
    Lane(name="distdy", algorithm="distdy", parts=3, window=2, base_every=4),
    Lane(name="sep", algorithm="sep", parts=3, window=2, base_every=3, edge_life=3),
)
GOING = Lane(name="going", algorithm="hash", parts=2, window=2, base_every=3)
Role = Callable[["Turn"], None]


class Turn:
    """What a role is given: the store, whether time is left, draws, and where it says what it did and what is wrong."""

    def __init__(self, store: str, ends: float, seed: int) -> None:
        self.store, self.ends = store, ends
        self.rng = np.random.default_rng(seed)
        self.did: Counter[str] = Counter()
        self.wrong: list[str] = []

    def over(self) -> bool:
        return time.time() >= self.ends

    def rest(self, most_s: float) -> None:
        time.sleep(float(self.rng.random()) * most_s)

    def sometimes(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def check(self, holds: bool, wrong: str) -> None:
        if not holds:
            self.wrong.append(wrong)


def write_log(turn: Turn) -> None:
    """The log's writer, opened again after some commits."""
    with LogWriter.open(turn.store, HEADER) as log:
        turn.did["opened"] += 1
        list(log.events_since(0))
        list(log.unpublished_rejects())
        for _ in range(int(turn.rng.integers(1, 30))):
            k = len(log.snapshots)
            log.commit(
                seal=[(k, events(k))],
                rejects=refused(k) if turn.sometimes(0.2) else None,
                positions={("t", 0): Position(topic="t", partition=0, next=k + 1, max_t_us=None)},
            )
            log.mark_published(log.last.n if log.last else 0)
            turn.did["sealed"] += 1
            turn.rest(0.05)
            if turn.over():
                break


def write_lane(lane: Lane, turn: Turn) -> None:
    """A lane's writer, opened again after some snapshots."""
    try:
        with LaneWriter(turn.store, lane) as writer:
            turn.did["opened"] += 1
            for _ in range(int(turn.rng.integers(1, 3 if lane is GOING else 20))):
                turn.did["snapshots"] += writer.catch_up(stop=turn.over)
                turn.rest(0.05)
                if turn.over():
                    break
    except LaneBusyError:
        if lane is not GOING:
            raise
        turn.did["busy"] += 1
        turn.rest(0.2)
    if lane is GOING:
        turn.rest(4.0)  # so that it can be removed


def drop(turn: Turn) -> None:
    """Compaction without a pause, and a lane that is removed again and again."""
    keep = Keep(snapshots=int(turn.rng.integers(2, 20)))
    remove = [GOING.name] if turn.sometimes(0.2) else []
    try:
        done = compact(turn.store, keep, always=True, remove=remove, stop=turn.over)
    except (LaneBusyError, ConfigMissingError) as error:
        if not remove:
            raise
        turn.did[type(error).__name__] += 1
        return
    turn.did["compacted"] += 1
    turn.did["dropped"] += done.dropped
    turn.did["removed"] += len(done.removed)
    turn.rest(0.3)


def check(turn: Turn) -> None:
    problems = verify(turn.store).problems
    turn.check(not problems, f"verify: {problems}")
    turn.did["verified"] += 1


def follow_log(turn: Turn) -> None:
    log, after, names = LogReader(turn.store), None, event_schema("int").names
    turn.did["opened"] += 1
    for snapshot in log.follow(timeout_s=2.0, stop=turn.over):
        turn.check(
            after is None or snapshot.tau == after + 1, f"follower: snapshot {snapshot.tau} after {after}"
        )
        after = snapshot.tau
        same = log.events(after).select(names).equals(events(after))
        turn.check(same, f"follower: snapshot {after} has other events")
        if turn.sometimes(0.1):
            nodes = log.nodes(after)
            ids = log.external_ids().take(nodes["node"].combine_chunks().cast(pa.int64()))
            turn.check(
                ids.to_pylist() == nodes["id"].to_pylist(), f"follower: ids of snapshot {after} differ"
            )
        turn.did["snapshots"] += 1
        if turn.sometimes(0.02):
            turn.rest(2.0)


def watch(lane: Lane, turn: Turn) -> None:
    """A window over a lane, now and then too slow; what it holds is compared with the truth."""
    truth = Truth(lane.edge_life)
    try:
        reader = LaneReader(turn.store, lane.name)
        view = WindowView(reader, int(turn.rng.integers(1, 4)))
        turn.did["opened"] += 1
        for manifest in reader.follow(timeout_s=2.0, stop=turn.over):
            if view.taus and turn.sometimes(0.1):
                continue  # a gap: the window is built again
            view.advance(manifest)
            view.events(manifest.tau)
            ahead = len(reader.log.snapshots) < len(reader.manifests)
            turn.check(not ahead, f"window: lane {lane.name} is ahead of its log")
            turn.did["snapshots"] += 1
            if turn.sometimes(0.3):
                tau, ids = view.taus[-1], reader.log.external_ids()
                same = pairs_of(ids, *view.pairs(tau)[:2]) == truth.after(tau)
                turn.check(same, f"window: lane {lane.name} holds other pairs after snapshot {tau}")
                turn.did["compared"] += 1
            if turn.sometimes(0.05):
                turn.rest(2.0)
    except ConfigMissingError:
        if lane is not GOING:
            raise
        turn.did["gone"] += 1
        turn.rest(0.5)


def pairs_of(ids: pa.Array, src: np.ndarray, dst: np.ndarray) -> set[tuple[Any, Any]]:
    """Pairs of external ids."""
    return set(zip(*(ids.take(pa.array(ends)).to_pylist() for ends in (src, dst)), strict=True))


def read_all(turn: Turn) -> None:
    """Everything that opens a store, reads it and closes it."""
    end = inspect(turn.store)["snapshots"]
    graph = read_graph(turn.store, lane=None if turn.sometimes(0.5) else "distdy")
    same = pairs_of(graph.ids, graph.src, graph.dst) == Truth(None).after(graph.tau)
    turn.check(same, f"read_graph: other pairs after snapshot {graph.tau}")
    store_events(turn.store)
    try:
        store_events(turn.store, AsOf(tau=end - 2))
        inspect(turn.store, AsOf(tau=end - 2))
    except RetainedError:
        turn.did["older than is kept"] += 1
    turn.did["read"] += 1


def export(turn: Turn) -> None:
    writer = ExportWriter(turn.store, "model")
    while not turn.over():
        number = len(writer.reader.commits)
        embedding = pa.array([[1.0]], pa.list_(pa.float32(), 1))
        table = pa.table({"id": [number], "node": pa.array([number % 7]), "embedding": embedding})

        def write(sink: Any, table: pa.Table = table) -> None:
            with pa.ipc.new_file(sink, table.schema) as file:
                file.write_table(table)

        with writer.begin() as made:
            reference = made.add("embeddings", write)
            writer.commit(made, ExportCommit(
                number=made.number, lane="distdy", tau=number, sequence=number, after=number - 1, model="m",
                model_version="1", scores_version="1", time_us=0, embeddings=reference, num_embeddings=1,
            ))  # fmt: skip
        turn.did["exported"] += 1
        writer.retain(int(turn.rng.integers(2, 40)))
        turn.rest(0.05)
        if turn.sometimes(0.05):
            break


def import_(turn: Turn) -> None:
    reader = ExportReader(turn.store, "model")
    if len(reader.commits):
        load_embeddings(turn.store, "model")
        turn.did["put together"] += 1
    following = max(reader.commits.first, len(reader.commits) - 5)
    for commit in reader.follow(following, timeout_s=0.5, stop=turn.over):
        reader.table(commit, "embeddings")
        turn.did["exports"] += 1
        if turn.sometimes(0.05):
            turn.rest(1.0)


ROLES: dict[str, dict[str, Role]] = {
    "writing": {
        "log writer": write_log,
        **{f"writer of {lane.name}": partial(write_lane, lane) for lane in (*LANES, GOING)},
        "exporter": export,
        "readers": read_all,
        "importer": import_,
    },
    "beside": {
        "compaction": drop,
        "verify": check,
        "follower": follow_log,
        **{f"window over {lane.name}": partial(watch, lane) for lane in (*LANES, GOING)},
    },
}
"""By process."""


def play(role: str, work: Role, turn: Turn) -> tuple[str, Turn]:
    while not turn.over():
        try:
            work(turn)
        except RetainedError:
            turn.did["fell behind"] += 1
        except Exception as error:  # noqa: BLE001  whatever it is, it is a finding
            turn.wrong.append(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}")
            turn.rest(0.5)
    return role, turn


def host(process: str, store: str, minutes: float, seed: int) -> list[tuple[str, Counter[str], list[str]]]:
    """Play some roles at a time, once what they need is compiled; what each did, and what it found wrong."""
    verify(store)
    read_graph(store, lane="distdy")
    sys.setswitchinterval(2e-4)
    ends, roles = time.time() + 60 * minutes, ROLES[process]
    turns = [Turn(store, ends, seed + k) for k in range(len(roles))]
    with ThreadPoolExecutor(len(roles)) as pool:
        played = pool.map(play, roles, roles.values(), turns)
    return [(role, turn.did, turn.wrong) for role, turn in played]


def main() -> None:
    given = harness.options(__doc__, minutes=0.5, bucket=False, seed=0)
    with ExitStack() as stack:
        folder = stack.enter_context(harness.scratch())
        store = f"{folder}/store"
        if given.bucket:
            store = stack.enter_context(running(folder)).store(lease_s=10, retry_s=60)
        with LogWriter.open(store, HEADER) as log:
            log.commit(seal=[(k, events(k)) for k in range(4)])
        for lane in LANES:
            with LaneWriter(store, lane) as writer:
                writer.catch_up()
        hosts = [
            harness.started(host, name, store, given.minutes, 100 * given.seed + k)
            for k, name in enumerate(ROLES)
        ]
        played = list(chain(*harness.answers(hosts, 60 * given.minutes + 180)))
        problems = verify(store).problems
    for role, did, wrong in played:
        print(f"{role}: {', '.join(f'{name} {count}' for name, count in sorted(did.items()))}")
        for each in wrong:
            print(f"WRONG {role}: {each}")
    count = sum(len(wrong) for *_, wrong in played)
    print(f"{count} wrong, in the end {problems or 'no problem'}")
    harness.require(not (count or problems), "the store is not sound")
    idle = [role for role, did, _ in played if not did]
    harness.require(not idle, f"without an act: {', '.join(idle)}")


if __name__ == "__main__":
    main()
