"""The writer of a lane: one process catches it up from the log, one commit per snapshot."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Literal, Self

import pyarrow as pa

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import FileRef, LaneManifest, QualityRecord, SealedSnapshot
from freshet_graph.stream.partition.interface import training_until_us
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.errors import CorruptError, LaneBusyError, RetainedError, StoreError
from freshet_graph.stream.store.files.records import Numbered, put_or_agree, put_record
from freshet_graph.stream.store.files.sweep import CleanUp, lock_folder, new_writer_id, remove
from freshet_graph.stream.store.lane.diff import Stored
from freshet_graph.stream.store.lane.index import LaneTotals
from freshet_graph.stream.store.lane.layout import (
    COMMITS,
    HEADER,
    STATE,
    data_name,
    lane_folder,
    manifest_name,
    require_not_removed,
    state_name,
)
from freshet_graph.stream.store.lane.reader import LaneReader, manifest_taus
from freshet_graph.stream.store.lane.state import VALUE, LaneState, LaneStep, lane_header, new_partitioner
from freshet_graph.stream.store.lane.sweep import newest_states, old_states, sweep_lane
from freshet_graph.stream.store.lane.tables import (
    assignment_batches,
    bundle_batches,
    edge_batches,
    event_part_batches,
    read_bundle,
    segment_batches,
)
from freshet_graph.stream.store.log.layout import COMMITS as LOG_COMMITS
from freshet_graph.stream.store.log.layout import log_folder
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.interface import Staging
from freshet_graph.stream.store.places.place import Place

LaneObserver = Callable[[LaneManifest], None]
"""Called with every manifest right after its commit."""

STATE_SHARE = 2
"""A state is due once the events since the last one are this fraction of its content (pairs, or as many bytes of feature
vectors): writing it, and replaying the log from the newest one, then cost a constant factor of the changes."""

BASE_SHARE = 4
"""A base that is due waits until the events since the last one are this fraction of the live pairs: writing it then costs a
constant factor of the changes, and reading the changes since the last base never more than reading a base."""

STATE_SNAPSHOTS, BASE_STEPS = 512, 16
"""A state is due after this many snapshots at the latest, and a base after this many times ``base_every``: each snapshot costs
some milliseconds to replay or read, even an empty one, and opening a lane must not take minutes."""

_STATE_PAIR_BYTES = 16


class LaneWriter:
    """Writes the lane snapshots that the lane lacks.

    The steps of a commit (with the remains of a crash):
        1. assignment, edges, segments, event parts, now and then base and state: temporary names, fsync
           [swept on open]
        2. renamed, their folders fsynced [files that no manifest names, swept on open]
        3. the manifest: temporary name, fsync, put if absent, fsync of the folder [all or nothing]
        4. states older than the newest two are removed [swept on open]; if that fails, the next commit repeats it
    A lane is a pure function of the log, its header and ``base_every``, so after a crash the same snapshot gets the same
    files, byte for byte. On open the newest readable state is restored, and the log replayed from there.
    """

    def __init__(
        self,
        store: str | Place,
        lane: Lane,
        *,
        observer: LaneObserver | None = None,
        writer_id: str | None = None,
    ) -> None:
        """Open a lane for writing, and create it if there is none.

        Args:
            store: Folder of a store that has a log.
            lane: The lane as configured. A new one, or one without a snapshot, takes it. ``base_every`` may change at any
                time: it says when a base is due, and readers take the existing ones.
            observer: Called with every manifest right after its commit.
            writer_id: Who writes; by default host, process and a random part.

        Raises:
            ConfigMissingError: The store has no log.
            PartitionError: Unknown algorithm, or parameters it doesn't take.
            LaneBusyError: Another process writes the lane; the message names it.
            MismatchError: The lane was made for something else; the message names the key.
            CorruptError, FormatVersionError: Log or lane is damaged, or from another release.
            OSError: The disk refuses.
        """
        wanted = lane_header(lane, LogReader(store).header)
        self.root = lane_folder(store, lane.name)
        self._log_commits = log_folder(store) / LOG_COMMITS
        self.writer_id = writer_id or new_writer_id()
        self._observer = observer
        self._base_every = lane.base_every
        self._open = True
        # By file: snapshots counted, and snapshots and events since the newest one with the file.
        self._counted: dict[str, tuple[int, int, int]] = {}
        self.root.make()
        self.lock = lock_folder(self.root, self.writer_id)
        try:
            require_not_removed(self.root)  # a process that removes it marks it under the lock
            (self.root / COMMITS).make()
            (self.root / COMMITS).fsync_ancestors()
            begun = bool(manifest_taus(self.root))
            self.header = put_or_agree(
                self.root / HEADER, wanted, "a lane", begun=begun, changeable={"base_every"}
            )
            self._reader = LaneReader(store, lane.name)
            self._clean_up = CleanUp(self.root)
            if self.root.lock_shuts_out:
                sweep_lane(self.root, self._reader)
            else:  # in a bucket only the first manifest shuts out a former writer
                self._clean_up.add(partial(sweep_lane, self.root, self._reader))
            self._begun_at = self._reader.log.snapshots.first
            self._training_until_us = training_until_us(new_partitioner(self.header))
            self._state: LaneState | None = None if self._waits() else self._restored()
        except BaseException:
            self.lock.release()
            raise

    @property
    def manifests(self) -> Numbered[LaneManifest]:
        """The lane's snapshots so far by sequence; read-only."""
        return self._reader.manifests

    @property
    def totals(self) -> LaneTotals:
        """Bytes and seconds of the lane's snapshots."""
        return self._reader.totals

    @property
    def lag(self) -> int:
        """Number of sealed snapshots of the log that the lane still lacks."""
        self._reader.log.refresh()
        return len(self._reader.log.snapshots) - len(self.manifests)

    def catch_up(self, *, stop: Callable[[], bool] = lambda: False) -> int:
        """Commit a lane snapshot for every sealed snapshot of the log that has none.

        A partitioner with a training part begins once the log has sealed all of that part.

        Args:
            stop: Called before each; True ends early.

        Returns:
            The number of commits.

        Raises:
            PartitionError: The partitioner can't continue.
            CorruptError: A file of the log is damaged.
            OSError: The disk refuses; the next call tries again.
            StoreError: The writer is closed.
        """
        if not self._open:
            raise StoreError(f"the writer of {self.root} is closed. Open the lane again")
        self._reader.refresh()  # a manifest may exist although putting it failed at its last step
        missing = [] if self._waits() else self._missing()
        if missing:  # a commit can be read just before it is durable, and a lane must not outlive its log
            self._log_commits.sync()
        done = 0
        for snapshot in missing:
            if stop():
                break
            if not self.manifests and self._begun_at != self._reader.log.snapshots.first:
                self._state = None  # the log has dropped the snapshots that the lane would have begun with
            state = self._state or self._restored()
            self._state = None  # after a failure, the next try starts from the disk
            try:
                self._commit(state, snapshot)
            except RetainedError:
                if not self._begins_later():
                    raise
                return done + self.catch_up(stop=stop)
            self._state = state
            done += 1
        return done

    def close(self) -> None:
        """Give the lock back; doing so twice is harmless."""
        self._open = False
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _commit(self, state: LaneState, snapshot: SealedSnapshot) -> None:
        tau = snapshot.tau
        begins = not self.manifests and self._reader.log.snapshots.first > 0
        step = state.advance(tau, self._reader.log.events(tau), from_nothing=begins)
        last = self.manifests[-1] if self.manifests else None
        sequence = len(self.manifests)
        self.lock.require()
        crash_point("commit.begun")
        with self.root.stage() as staging:
            files = self._stage(staging, state, step, sequence, snapshot.num_events)
            staging.finish()
        record = LaneManifest(
            format_version=LaneManifest.version_of(whole_pairs=step.stored.whole_pairs),
            lane=self.header.lane,
            lane_checksum=self.header.checksum,
            tau=tau,
            sequence=sequence,
            previous=last.checksum if last else "",
            log_events_checksum=snapshot.events.checksum,
            num_nodes=snapshot.num_nodes,
            num_events=snapshot.num_events,
            live_nodes=step.delta.num_live,
            live_edges=step.live_pairs,
            **files,
            parts=step.parts,
            discarded=step.discarded,
            quality=QualityRecord.of(
                dataclasses.replace(state.partitioner.quality(), foreign_parts=step.foreign_parts),
                step.seconds,
            ),
            wall_time_us=time.time_ns() // 1_000,
        )
        if not self.manifests and self._begins_later():
            raise RetainedError(
                f"the log of {self.root} no longer keeps snapshot {tau}, with which the lane was to begin. Try again"
            )
        try:
            record = put_record(self.root / manifest_name(tau), record)
        except FileExistsError:
            raise LaneBusyError(
                f"{self.root / manifest_name(tau)} was made while {self.writer_id} held the lane's lock: "
                f"{self.lock.why_both}"
            ) from None
        self._reader.add(record)
        # The manifest exists: from here on nothing may fail its commit.
        self._clean_up.add(self._remove_old_states)
        self._clean_up.run()
        crash_point("commit.done")
        if self._observer is not None:
            self._observer(record)

    def _remove_old_states(self) -> None:
        self._reader.refresh()
        newest = self.root / manifest_name(self.manifests[-1].tau)
        remove(newest.outdated(old_states(self.root, self.manifests)))

    def _stage(
        self, staging: Staging, state: LaneState, step: LaneStep, sequence: int, num_events: int
    ) -> dict[str, FileRef | None]:
        tau = step.delta.tau
        files: dict[str, FileRef | None] = {
            name: staging.add_table(data_name(tau, name), batches, compressed=True)
            for name, batches in stored_batches(step.stored, state.width).items()
        }
        if step.event_part is not None:
            files["event_parts"] = staging.add_table(
                data_name(tau, "event_parts"), event_part_batches(step.event_part), compressed=True
            )
        if sequence and sequence % self._base_every == 0 and self._base_is_worth_it(step, num_events):
            whole = bundle_batches(stored_batches(state.whole(), state.width))
            files["base"] = staging.add_table(data_name(tau, "base"), whole)
        if not self.manifests or self._state_is_due(step, num_events):
            files["state"] = staging.add_table(state_name(tau), bundle_batches(state.tables()))
        return files

    def _state_is_due(self, step: LaneStep, num_events: int) -> bool:
        vectors = step.delta.num_nodes * self.header.node_features * VALUE // _STATE_PAIR_BYTES
        snapshots, events = self._since("state")
        return (
            snapshots + 1 >= STATE_SNAPSHOTS
            or (events + num_events) * STATE_SHARE >= step.live_pairs + vectors
        )

    def _base_is_worth_it(self, step: LaneStep, num_events: int) -> bool:
        snapshots, events = self._since("base")
        return (
            snapshots + 1 >= BASE_STEPS * self._base_every
            or (events + num_events) * BASE_SHARE >= step.live_pairs
        )

    def _since(self, file: Literal["state", "base"]) -> tuple[int, int]:
        """Number of snapshots since the newest one with this file, and of their events."""
        done = len(self.manifests)
        if file in self._counted:
            known, snapshots, events = self._counted[file]
            for manifest in self.manifests[known:]:
                has = getattr(manifest, file) is not None
                snapshots, events = (0, 0) if has else (snapshots + 1, events + manifest.num_events)
        else:
            snapshots = events = 0
            for manifest in reversed(self.manifests):
                if getattr(manifest, file) is not None:
                    break
                snapshots, events = snapshots + 1, events + manifest.num_events
        self._counted[file] = done, snapshots, events
        return snapshots, events

    def _waits(self) -> bool:
        """Whether the lane cannot begin, because the log has not sealed all of the training part."""
        if self._training_until_us is None or self.manifests:
            return False
        sealed = self._reader.log.snapshots
        return not sealed or (sealed[-1].tau + 1) * self.header.interval_us <= self._training_until_us

    def _missing(self) -> list[SealedSnapshot]:
        """The log's snapshots that the lane lacks."""
        snapshots, done = self._reader.log.snapshots, len(self.manifests)
        if self.manifests and snapshots.first > done:
            raise CorruptError(
                f"{self.root} has snapshots up to number {done - 1}, but its log begins with number {snapshots.first}: a "
                "compaction that began before the lane did has dropped those between. Remove the lane with freshet-stream "
                f"compact --remove-lane {self.header.lane}. The job then builds it again from what the log keeps"
            )
        return snapshots[done:]

    def _restored(self) -> LaneState:
        """The state after the lane's last snapshot; without one, the state that the log begins with."""
        while True:
            self._begun_at = self._reader.log.snapshots.first
            try:
                return self._replayed()
            except RetainedError:
                if not self._begins_later():
                    raise

    def _begins_later(self) -> bool:
        """Whether a compaction has dropped the log's snapshots that the lane would have begun with."""
        self._reader.refresh()
        return not self.manifests and self._reader.log.snapshots.first != self._begun_at

    def _replayed(self) -> LaneState:
        log, manifests = self._reader.log, self.manifests
        state, following = LaneState(self.header), manifests.first
        for manifest in newest_states(manifests):
            assert manifest.state is not None
            try:
                state.restore(read_bundle(self.root, manifest.state))
            except (CorruptError, ValueError, LookupError, TypeError):
                state = LaneState(self.header)
                continue  # an older state or the log gives the same; verify reports the file
            following = manifest.sequence + 1
            break
        else:
            index = self._reader.index
            if index is not None and index.base is not None:
                raise CorruptError(
                    f"no state of {self.root} can be read, and the log no longer keeps the snapshots before it. Restore "
                    f"the folder {STATE} from a copy, or remove the lane with freshet-stream compact --remove-lane "
                    f"{self.header.lane}. The job then builds it again from what the log keeps"
                )
            state.foresee(log)
            state.begin(log.base())
        for manifest in manifests[following:]:
            state.advance(manifest.tau, log.events(manifest.tau))
        return state


def stored_batches(stored: Stored, width: int) -> dict[str, list[pa.RecordBatch]]:
    """Record batches of assignment, edges and segments, by file name."""
    return {
        "assignment": assignment_batches(stored.node, stored.part, stored.why),
        "edges": edge_batches(stored.pairs),
        "segments": segment_batches(stored.segments, width),
    }
