"""Everything beside everything: does any reader, writer or verify stumble over what another process does to the store?

    python benchmarks/beside.py [--minutes 0.5] [--bucket] [--seed 0]

A thread each, in two processes: a log writer and lane writers that are closed and opened all the time, a compaction after the
other that drops and folds what it may, a lane that is removed and made anew, exports that are written and pruned, and beside
them verify, a follower of the log, windows over lanes, and everything that reads a whole store. Events follow from the number
of their snapshot, so what readers see is compared with what must be there. --bucket: in moto's server on this machine.

Printed: what each of them did, and everything that nobody promised. Exit code 1 where there is something.
"""

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from s3_server import running
from store_truth import HEADER, Truth, events, refused

from schemas.config import Lane
from schemas.events import event_schema
from schemas.exports import ExportCommit
from schemas.store import Position
from stream.store.as_of import AsOf
from stream.store.compact.store import Keep, compact
from stream.store.errors import ConfigMissingError, LaneBusyError, RetainedError
from stream.store.exports import ExportReader, ExportWriter
from stream.store.graph import read_graph
from stream.store.inspect import inspect
from stream.store.lane.reader import LaneReader
from stream.store.lane.writer import LaneWriter
from stream.store.log.reader import LogReader
from stream.store.log.writer import LogWriter
from stream.store.store_events import store_events
from stream.store.verify.store import verify
from stream.store.window.view import WindowView
from trainer.exports.embeddings import load_embeddings

LANES = (
    Lane(name="distdy", algorithm="distdy", parts=3, window=2, base_every=4),
    Lane(name="sep", algorithm="sep", parts=3, window=2, base_every=3, edge_life=3),
)
GOING = Lane(name="going", algorithm="hash", parts=2, window=2, base_every=3)
Role = Callable[["Turn"], None]


class Turn:
    """What a process is given: the store, when to end, and where to say what it did."""

    def __init__(self, store: str, ends: float, seed: int, told: Any) -> None:
        self.store, self.ends = store, ends
        self.rng = np.random.default_rng(seed)
        self.did: Counter[str] = Counter()
        self._told = told

    @property
    def going_on(self) -> bool:
        return time.time() < self.ends

    def over(self) -> bool:
        return not self.going_on

    def rest(self, most_s: float) -> None:
        time.sleep(float(self.rng.random()) * most_s)

    def wrong(self, what: str) -> None:
        self._told.put(("wrong", what))


def write_log(turn: Turn) -> None:
    """The log's writer, opened again after some commits."""
    while turn.going_on:
        with LogWriter.open(turn.store, HEADER) as log:
            turn.did["opened"] += 1
            list(log.events_since(0))
            list(log.unpublished_rejects())
            for _ in range(int(turn.rng.integers(1, 30))):
                k = len(log.snapshots)
                log.commit(
                    seal=[(k, events(k))],
                    rejects=refused(k) if turn.rng.random() < 0.2 else None,
                    positions={("t", 0): Position(topic="t", partition=0, next=k + 1, max_t_us=None)},
                )
                log.mark_published(log.last.n if log.last else 0)
                turn.did["sealed"] += 1
                turn.rest(0.05)
                if turn.over():
                    break


def write_lane(lane: Lane) -> Role:
    """A lane's writer, opened again after some snapshots."""

    def work(turn: Turn) -> None:
        while turn.going_on:
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

    return work


def drop(turn: Turn) -> None:
    """Compaction without a pause, and a lane that is removed again and again."""
    while turn.going_on:
        keep = Keep(snapshots=int(turn.rng.integers(2, 20)))
        remove = [GOING.name] if turn.rng.random() < 0.2 else []
        try:
            done = compact(turn.store, keep, always=True, remove=remove, stop=turn.over)
        except (LaneBusyError, ConfigMissingError) as error:
            if not remove:
                raise
            turn.did[type(error).__name__] += 1
            continue
        turn.did["compacted"] += 1
        turn.did["dropped"] += done.dropped
        turn.did["removed"] += len(done.removed)
        turn.rest(0.3)


def check(turn: Turn) -> None:
    while turn.going_on:
        for problem in verify(turn.store).problems:
            turn.wrong(f"verify: {problem}")
        turn.did["verified"] += 1


def follow_log(turn: Turn) -> None:
    while turn.going_on:
        log = LogReader(turn.store)
        turn.did["opened"] += 1
        try:
            after = None
            for snapshot in log.follow(timeout_s=2.0, stop=turn.over):
                if after is not None and snapshot.tau != after + 1:
                    turn.wrong(f"follower: snapshot {snapshot.tau} after {after}")
                after = snapshot.tau
                if not log.events(after).select(event_schema("int").names).equals(events(after)):
                    turn.wrong(f"follower: snapshot {after} has other events")
                if turn.rng.random() < 0.1:
                    first = log.nodes(after)["node"].to_pylist()
                    ids = log.external_ids()
                    if (
                        ids.take(pa.array(first, pa.int64())).to_pylist()
                        != log.nodes(after)["id"].to_pylist()
                    ):
                        turn.wrong(f"follower: ids of snapshot {after} differ")
                turn.did["snapshots"] += 1
                if turn.rng.random() < 0.02:
                    turn.rest(2.0)
        except RetainedError:
            turn.did["fell behind"] += 1


def watch(lane: Lane) -> Role:
    """A window over a lane, now and then too slow; what it holds is compared with the truth."""

    def work(turn: Turn) -> None:
        truth = Truth(lane.edge_life)
        while turn.going_on:
            try:
                reader = LaneReader(turn.store, lane.name)
                view = WindowView(reader, int(turn.rng.integers(1, 4)))
                turn.did["opened"] += 1
                for manifest in reader.follow(timeout_s=2.0, stop=turn.over):
                    if view.taus and turn.rng.random() < 0.1:
                        continue  # a gap: the window is built anew
                    view.advance(manifest)
                    view.events(manifest.tau)
                    if len(reader.log.snapshots) < len(reader.manifests):
                        turn.wrong(f"window: lane {lane.name} is ahead of its log")
                    turn.did["snapshots"] += 1
                    if turn.rng.random() < 0.3:
                        compare(turn, view, reader, truth)
                    if turn.rng.random() < 0.05:
                        turn.rest(2.0)
            except RetainedError:
                turn.did["fell behind"] += 1
            except ConfigMissingError:
                if lane is not GOING:
                    raise
                turn.did["gone"] += 1
                turn.rest(0.5)

    return work


def compare(turn: Turn, view: WindowView, reader: LaneReader, truth: Truth) -> None:
    tau = view.taus[-1]
    ids = reader.log.external_ids()
    src, dst, _ = view.pairs(tau)
    found = zip(ids.take(pa.array(src)).to_pylist(), ids.take(pa.array(dst)).to_pylist(), strict=True)
    if set(found) != truth.after(tau):
        turn.wrong(f"window: lane {reader.header.lane} holds other pairs after snapshot {tau}")
    turn.did["compared"] += 1


def read_all(turn: Turn) -> None:
    """Everything that opens a store, reads it and closes it."""
    truth = Truth(None)
    while turn.going_on:
        end = inspect(turn.store)["snapshots"]
        turn.did["inspected"] += 1
        graph = read_graph(turn.store, lane=None if turn.rng.random() < 0.5 else "distdy")
        found = zip(graph.ids.take(pa.array(graph.src)).to_pylist(), graph.ids.take(pa.array(graph.dst)).to_pylist(),
                    strict=True)  # fmt: skip
        if set(found) != truth.after(graph.tau):
            turn.wrong(f"read_graph: other pairs after snapshot {graph.tau}")
        store_events(turn.store)
        try:
            store_events(turn.store, AsOf(tau=end - 2))
            inspect(turn.store, AsOf(tau=end - 2))
        except RetainedError:
            turn.did["older than is kept"] += 1
        turn.did["read"] += 1


def export(turn: Turn) -> None:
    writer = ExportWriter(turn.store, "model")
    while turn.going_on:
        number = len(writer.reader.commits)
        table = pa.table({
            "id": [number], "node": pa.array([number % 7]), "embedding": pa.array([[1.0]], pa.list_(pa.float32(), 1)),
        })  # fmt: skip
        with writer.begin() as made:

            def write(sink: Any, table: pa.Table = table) -> None:
                with pa.ipc.new_file(sink, table.schema) as file:
                    file.write_table(table)

            reference = made.add("embeddings", write)
            writer.commit(made, ExportCommit(
                number=made.number, lane="distdy", tau=number, sequence=number, after=number - 1, model="m",
                model_version="1", scores_version="1", time_us=0, embeddings=reference, num_embeddings=1,
            ))  # fmt: skip
        turn.did["exported"] += 1
        writer.retain(int(turn.rng.integers(2, 40)))
        if turn.rng.random() < 0.05:
            writer = ExportWriter(turn.store, "model")
        turn.rest(0.05)


def import_(turn: Turn) -> None:
    while turn.going_on:
        reader = ExportReader(turn.store, "model")
        following = max(reader.commits.first, len(reader.commits) - 5)
        try:
            for commit in reader.follow(following, timeout_s=0.5, stop=turn.over):
                reader.table(commit, "embeddings")
                turn.did["exports"] += 1
                if turn.rng.random() < 0.05:
                    turn.rest(1.0)
        except RetainedError:
            turn.did["fell behind"] += 1
        if len(reader.commits):
            load_embeddings(turn.store, "model")
            turn.did["put together"] += 1


WRITING: dict[str, Role] = {
    "log writer": write_log,
    **{f"writer of {lane.name}": write_lane(lane) for lane in (*LANES, GOING)},
    "exporter": export,
    "readers": read_all,
    "importer": import_,
}
BESIDE: dict[str, Role] = {
    "compaction": drop,
    "verify": check,
    "follower": follow_log,
    **{f"window over {lane.name}": watch(lane) for lane in (*LANES, GOING)},
}


def play(role: str, work: Role, turn: Turn, told: Any) -> None:
    while turn.going_on:
        try:
            work(turn)
        except Exception as error:  # noqa: BLE001  whatever it is, it is told
            told.put(("wrong", f"{role}: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}"))
            turn.rest(0.5)
    told.put(("did", (role, turn.did)))


def host(roles: str, store: str, minutes: float, seed: int, ready: Any, told: Any) -> None:
    """Play some roles at a time, once both processes have compiled what they need."""
    verify(store)
    read_graph(store, lane="distdy")
    sys.setswitchinterval(2e-4)
    ready.wait()
    ends = time.time() + 60 * minutes
    chosen = WRITING if roles == "writing" else BESIDE
    threads = [
        threading.Thread(target=play, args=(role, work, Turn(store, ends, seed + k, told), told), daemon=True)
        for k, (role, work) in enumerate(chosen.items())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def outcome(told: Any, count: int, wait_s: float) -> Iterator[tuple[str, Any]]:
    """What is told, until all have ended or are far too late."""
    until = time.time() + wait_s
    while count and time.time() < until:
        try:
            kind, said = told.get(timeout=1.0)
        except Empty:
            continue
        count -= kind == "did"
        yield kind, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--bucket", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-beside-")))
        store = f"{folder}/store"
        if arguments.bucket:
            store = stack.enter_context(running(folder)).store(lease_s=10, retry_s=60)
        with LogWriter.open(store, HEADER) as log:
            log.commit(seal=[(k, events(k)) for k in range(4)])
        for lane in LANES:
            with LaneWriter(store, lane) as writer:
                writer.catch_up()
        told, ready = context.Queue(), context.Barrier(3)
        processes = [
            context.Process(
                target=host, args=(roles, store, arguments.minutes, seed, ready, told), daemon=True
            )
            for seed, roles in enumerate(("writing", "beside"), 100 * arguments.seed)
        ]
        for process in processes:
            process.start()
        ready.wait()
        wrong = 0
        for kind, said in outcome(told, len(WRITING) + len(BESIDE), 60 * arguments.minutes + 180):
            if kind == "did":
                role, did = said
                print(
                    f"{role}: " + ", ".join(f"{what} {count}" for what, count in sorted(did.items())),
                    flush=True,
                )
            else:
                wrong += 1
                print(f"WRONG {said}", flush=True)
        for process in processes:
            process.join(10)
        hang = sum(process.is_alive() for process in processes)
        problems = verify(store).problems
        for process in processes:
            process.kill()
    for problem in problems:
        print(f"WRONG in the end: {problem}")
    print(f"{wrong} wrong, {len(problems)} in the end, {hang} processes hang")
    return int(bool(wrong or problems or hang))


if __name__ == "__main__":
    sys.exit(main())
