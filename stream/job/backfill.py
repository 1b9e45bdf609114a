"""Backfill: begin a log with files of past events, before Kafka takes over."""

import shlex
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import structlog

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import US_PER_S, show_time
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions, flag_of
from freshet_graph.schemas.store import (
    FORMAT_VERSION,
    LABELS_NAMED,
    HistoryEnd,
    HistoryFile,
    HistoryRecord,
    Key,
    Position,
)
from freshet_graph.stream.decode.files import listed
from freshet_graph.stream.decode.history_file import (
    Survey,
    count_from,
    label_polls,
    label_rows,
    read_polls,
    survey,
)
from freshet_graph.stream.decode.validate import Rules
from freshet_graph.stream.kafka.broker_clock import BrokerClock
from freshet_graph.stream.kafka.present import Present
from freshet_graph.stream.kafka.takeover import require_reach, topic_bounds
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.full_disk import room_to_begin
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.snapshots.border import HISTORY, HISTORY_LABELS
from freshet_graph.stream.store.errors import OffsetGapError
from freshet_graph.stream.store.log.commits import (
    fingerprint,
    intended,
    names,
    require_whole_history,
    rows_read,
)
from freshet_graph.stream.store.log.layout import log_folder
from freshet_graph.stream.store.log.writer import LogWriter

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Backfilled:
    """The result of a backfill.

    Attributes:
        history: What the log begins with.
        rows: Rows read by this run.
        snapshots: Snapshots sealed by this run.
        seconds: From the first row to the last commit.
        events: Events of the history in the log, of all runs; None: Kafka's came before they were counted.
        refused: Rows refused, of all runs; None as for ``events``.
        labels: Labels in the log, of all runs.
    """

    history: HistoryRecord
    rows: int
    snapshots: int
    seconds: float
    events: int | None
    refused: int | None
    labels: int


def backfill(
    config: StreamConfig,
    files: Sequence[str | Path],
    *,
    labels: Sequence[str | Path] = (),
    until_us: int | None = None,
    offsets: Mapping[Key, int] | None = None,
    options: FileOptions = AS_EVENTS,
    progress: Callable[[int, int, int], None] = lambda read, rows, snapshots: None,
) -> Backfilled:
    """Write the events of files into a new log, or resume an earlier try.

    1. ``log/history.json`` names the files: from here on the log begins with a history, and ``run`` is refused until it is in.
    2. The files are surveyed and the brokers asked for the ends of the topics; the record keeps both.
    3. Rows enter the log like messages of a topic partition whose offsets are rows: commits, rejects and restarts are
       those of the stream.
    4. Snapshots that end by ``until_us`` are sealed. ``run`` then reads Kafka from there.

    Args:
        config: The stream's.
        files: Files, globs and folders; all files are read in order of their first times.
        labels: Files of labels, which are read before the events: each label is visible from its own time on.
        until_us: Events before it come from the files, later ones from Kafka; None: all of the files, which is refused
            if topics have messages and ``offsets`` doesn't name them.
        offsets: Where Kafka is read from, whatever the times. Other topic partitions begin with their first retained
            message, and events of the history are skipped.
        options: How all files are read.
        progress: Called after each poll and each commit with the rows read, all rows, and the snapshots sealed by this run.

    Raises:
        Failure: A file can't be read or isn't that of the earlier try, no broker answers, or the configuration
            doesn't fit.
        StoreError: The log is busy, damaged or made for something else, or Kafka doesn't reach back far enough.
        OSError: The disk refuses.
    """
    files, labels = listed(files), listed(labels)
    with room_to_begin(config.store), LogWriter.open(config.store, log_header(config)) as writer:
        if writer.may_begin_with_history:
            writer.begin_with(intended(files))
        elif writer.history is None:
            raise Failure(
                f"store: the log in {config.store} has messages from Kafka already, and a history must come before them. "
                "Choose a new store"
            )
        rules = Rules.of(config, _present_us(config))
        if writer.may_begin_with_history:
            history, ordered = _plan(
                config, rules, files, labels, until_us, dict(offsets or {}), options, writer.positions
            )
            history = writer.begin_with(history)
        else:
            assert writer.history is not None
            history, ordered = (
                writer.history,
                _same(writer.history, files, labels, until_us, offsets, options),
            )
        begun_s, first = time.monotonic(), rows_read(writer.positions)
        sealed = len(writer.snapshots)
        sink = SnapshotSink(writer, _in_file_order(config, history))
        sink.assign([HISTORY])
        for batch in _label_polls(config, rules, history, labels, writer.positions):
            sink.offer(batch)
            sink.advance()
        sink.flush()  # with events in their commit, labels would be visible after these

        def reached(read: int) -> None:
            progress(read, history.rows, len(writer.snapshots) - sealed)

        for batch in _polls(config, rules, history, ordered, first):
            sink.offer(batch)
            while sink.advance() is not None:  # one commit seals so many snapshots at most
                reached(batch.end_offset)
            reached(batch.end_offset)
        while sink.seal_before(history.until_us) is not None:
            reached(history.rows)
        # All of the log is the history, though Kafka's partitions may have positions: record its counts.
        if first < history.rows or set(writer.positions) <= {HISTORY, HISTORY_LABELS}:
            last = writer.last
            history = writer.history_read(
                events=writer.totals.events + (last.tail_events if last else 0),
                refused=sum(last.refused.values()) if last else 0,
            )
        _log.info("history read", rows=history.rows, until=show_time(history.until_us), store=config.store)
        return Backfilled(
            history,
            rows=history.rows - first,
            snapshots=len(writer.snapshots) - sealed,
            seconds=time.monotonic() - begun_s,
            events=history.events,
            refused=history.refused,
            labels=writer.last.num_labels if writer.last else 0,
        )


def _present_us(config: StreamConfig) -> int:
    """Upper bound of the rows' times, microseconds."""
    present = Present(config)
    with closing(BrokerClock(config.kafka)) as brokers:
        present.ask_too(brokers.ask, lambda: None)
        reason = present.check()
    if reason is not None:
        raise Failure(reason)
    return present.now_us()


def _plan(
    config: StreamConfig,
    rules: Rules,
    files: Sequence[Path],
    labels: Sequence[Path],
    until_us: int | None,
    offsets: dict[Key, int],
    options: FileOptions,
    positions: Mapping[Key, Position],
) -> tuple[HistoryRecord, list[Path]]:
    """Survey the files, and find the ends of the topics; ``positions`` are those of a log that has taken nothing in."""
    _require_distinct([*files, *labels])
    surveyed = sorted(
        ((survey(path, rules, options), path) for path in files), key=lambda pair: pair[0].first_us or 0
    )
    surveys, ordered = [s for s, _ in surveyed], [path for _, path in surveyed]
    times = [s.last_us for s in surveys if s.last_us is not None]
    if not times:
        remark = next((s.remark for s in surveys if s.remark), "")
        raise Failure(f"{', '.join(map(str, files))}: no row has a time within time_bounds{remark}")
    ends = _ends(config, offsets, positions)
    if not labels:  # then those of Kafka are all taken, whatever their times
        ends = [end for end in ends if end.start is not None or not config.kafka.has_labels(end.topic)]
    until = until_us
    if until is None:
        until = max(times) + 1
        if any(end.start is None and end.end > 0 for end in ends):
            raise Failure(
                f"the topics have messages already, and the files end at {show_time(max(times))}. Choose where Kafka takes "
                f"over. --until {show_time(max(times))} reads that moment from Kafka, which is right if the files may have "
                "only a part of it. A later time reads all of the files. Or name offsets"
            )
    history = HistoryRecord(
        format_version=LABELS_NAMED if labels else FORMAT_VERSION,
        files=[fingerprint(path, s.rows) for s, path in surveyed],
        until_us=until,
        rows=sum(s.rows for s in surveys),
        after=0 if until > max(times) else sum(count_from(path, rules, until, options) for path in ordered),
        disorder_us=_disorder_us(surveys),
        ends=ends,
        labels=[fingerprint(path, label_rows(path)) for path in labels],
        labels_until_us=until_us,
        reading=options.given,
    )
    _require_reach(config, history, ())
    return history, ordered


def _require_distinct(files: Sequence[Path]) -> None:
    first: dict[tuple[int, str], Path] = {}
    for path in files:
        file = fingerprint(path, 0)
        other = first.setdefault((file.bytes, file.checksum), path)
        if other is not path:
            raise Failure(
                f"{path} has the same content as {other}, and its events would be in the log twice. Name it once"
            )


def require_takeover(config: StreamConfig, writer: LogWriter) -> None:
    """Check that Kafka can take over from a log's history, if the log has one.

    Raises:
        StoreError: The history isn't read to its end, or retention deleted messages from after it (with
            ``on_gap: skip`` that is only logged).
        Failure: ``kafka.start`` doesn't fit, or no broker answers.
    """
    if writer.history is not None:
        require_whole_history(log_folder(config.store), writer.history, writer.positions)
        _require_reach(config, writer.history, writer.positions)


def _require_reach(config: StreamConfig, history: HistoryRecord, begun: Container[Key]) -> None:
    starts = {end.topic: config.kafka.start_of(end.topic) for end in history.ends}
    partitions = [
        (end.topic, end.partition)
        for end in history.ends
        if end.start is None and starts[end.topic] is not None and (end.topic, end.partition) not in begun
    ]
    for topic, _ in partitions:
        if starts[topic] != "earliest":
            raise Failure(
                f"kafka.start is {starts[topic]} (topic {topic}), but after a history Kafka must be read from the end of the "
                "history. Set kafka.start: earliest"
            )
    if not partitions:
        return
    try:
        require_reach(config.kafka, partitions, history.until_us)
    except OffsetGapError as error:
        if config.kafka.on_gap == "fail":
            raise
        _log.warning("continuing over a gap", gap=str(error))


def _ends(
    config: StreamConfig, offsets: Mapping[Key, int], positions: Mapping[Key, Position]
) -> list[HistoryEnd]:
    bounds_by_key = {(bounds.topic, bounds.partition): bounds for bounds in topic_bounds(config.kafka)}
    for (topic, partition), offset in offsets.items():
        bounds = bounds_by_key.get((topic, partition))
        if bounds is None:
            known = ", ".join(f"{name}/{number}" for name, number in bounds_by_key)
            raise Failure(
                f"--offset {topic}/{partition}={offset} names no topic partition of the configuration. They are {known}"
            )
        if offset > bounds.end:
            raise Failure(
                f"--offset {topic}/{partition}={offset} lies after the partition's end. Name one up to {bounds.end}"
            )
    for key, bounds in bounds_by_key.items():
        begin, position = offsets.get(key, bounds.log_start), positions.get(key)
        if position is not None and position.next > begin:
            raise Failure(
                f"the log in {config.store} reads {key[0]}/{key[1]} from offset {position.next} on, but after this history it "
                f"is read from {begin}. Choose a new store"
            )
    return [
        HistoryEnd(topic=key[0], partition=key[1], start=offsets.get(key), end=offsets.get(key, bounds.end))
        for key, bounds in bounds_by_key.items()
    ]


def _same(
    history: HistoryRecord,
    files: Sequence[Path],
    labels: Sequence[Path],
    until_us: int | None,
    offsets: Mapping[Key, int] | None,
    options: FileOptions,
) -> list[Path]:
    """The files of events in the order of the earlier try; files and options must be the same."""
    known_labels = [(file.bytes, file.checksum) for file in history.labels]
    if known_labels != [(file.bytes, file.checksum) for file in (fingerprint(path, 0) for path in labels)]:
        raise Failure(
            f"the log's history has {names(history.labels) or 'no files'} of labels. Give the same files, or choose a new store"
        )
    given = {path: fingerprint(path, 0) for path in files}
    ordered = []
    for known in history.files:
        same = [
            path
            for path, file in given.items()
            if (file.bytes, file.checksum) == (known.bytes, known.checksum) and path not in ordered
        ]
        if not same:
            raise Failure(
                f"the log's history is {names(history.files)}, and {known.name} as it was then is not among the files "
                "given. Give the same files, or choose a new store"
            )
        ordered.append(same[0])
    if len(ordered) < len(given):
        raise Failure(f"the log's history is {names(history.files)} only. Choose a new store for more files")
    if until_us is not None and until_us != history.until_us:
        raise Failure(
            f"the log's history ends at {show_time(history.until_us)}, but --until is {show_time(until_us)}. Leave the option "
            "out, or choose a new store"
        )
    then = _options(history)
    if options != then:
        unlike = [name for name in FileOptions.model_fields if getattr(options, name) != getattr(then, name)]
        differ = "differs" if len(unlike) == 1 else "differ"
        remedy = f"Give {shlex.join(then.flags)}" if then.flags else "Leave the option out"
        raise Failure(
            f"{' and '.join(map(flag_of, unlike))} {differ} from when the log's history began. {remedy}, or choose a new store"
        )
    starts = {(end.topic, end.partition): end.start for end in history.ends if end.start is not None}
    if offsets and dict(offsets) != starts:
        raise Failure(
            "--offset names other offsets than when the log's history began. Leave the option out, or choose a new store"
        )
    return ordered


def _polls(
    config: StreamConfig, rules: Rules, history: HistoryRecord, files: Sequence[Path], start: int
) -> Iterator[MicroBatch]:
    """All rows from ``start`` on, counted over all files."""
    for path, first, begin in _unread(history.files, files, start):
        yield from read_polls(
            path,
            config,
            rules,
            key=HISTORY,
            first=first,
            start=begin,
            until_us=history.until_us,
            options=_options(history),
        )


def _label_polls(
    config: StreamConfig,
    rules: Rules,
    history: HistoryRecord,
    files: Sequence[Path],
    positions: Mapping[Key, Position],
) -> Iterator[MicroBatch]:
    """The labels that the log lacks, rows counted over all files."""
    rankings = [topic.sources for topic in config.kafka.topics if topic.sources is not None]
    if files and any(ranking != rankings[0] for ranking in rankings):
        raise Failure(
            "label topics rank their sources differently, and a file of labels has one ranking. Give them the same sources"
        )
    begun = positions.get(HISTORY_LABELS)
    for path, first, begin in _unread(history.labels, files, 0 if begun is None else begun.next):
        yield from label_polls(
            path,
            config,
            rules,
            key=HISTORY_LABELS,
            first=first,
            start=begin,
            until_us=history.labels_until_us,
            sources=rankings[0] if rankings else None,
        )


def _unread(
    records: Sequence[HistoryFile], files: Sequence[Path], start: int
) -> Iterator[tuple[Path, int, int]]:
    """Files with rows from row ``start`` of all files on: path, number of the first row, first row to read in the file."""
    first = 0
    for record, path in zip(records, files, strict=True):
        if start < first + record.rows:
            yield path, first, max(0, start - first)
        first += record.rows


def _options(history: HistoryRecord) -> FileOptions:
    """How the files of a history are read."""
    columns = ",".join(f"{name}={column}" for name, column in history.columns.items())
    return FileOptions.model_validate({"columns": columns} if columns else history.reading)


def _in_file_order(config: StreamConfig, history: HistoryRecord) -> StreamConfig:
    """The configuration with a lateness that accepts every row of the history."""
    lateness_s = max(config.snapshots.lateness_s, -(-history.disorder_us // US_PER_S))
    snapshots = config.snapshots.model_copy(update={"lateness_s": float(lateness_s)})
    return config.model_copy(update={"snapshots": snapshots})


def _disorder_us(surveys: Sequence[Survey]) -> int:
    """How far a row lies before an earlier one, over the files in their order."""
    disorder, reached = 0, None
    for file_survey in surveys:
        disorder = max(disorder, file_survey.disorder_us)
        if file_survey.first_us is None or file_survey.last_us is None:
            continue
        if reached is not None:
            disorder = max(disorder, reached - file_survey.first_us)
        reached = file_survey.last_us if reached is None else max(reached, file_survey.last_us)
    return disorder
