"""A few messages or rows read as a stream would read them, and paths that it could be told: nothing is written."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Kafka, SchemaRegistry, StreamConfig, Topic
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.fields import Fields
from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.stream.decode.columns import id_kind
from freshet_graph.stream.decode.confluent import SchemaHeader, recognised, schema_ids, without_header
from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.decode.encode import encode_json
from freshet_graph.stream.decode.file_columns import ColumnMissingError, OpenedFile
from freshet_graph.stream.decode.files import first_width, open_rows, readable
from freshet_graph.stream.decode.formats.interface import create_format
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient, UnknownSchemaError
from freshet_graph.stream.decode.json_file import leaves
from freshet_graph.stream.decode.proposed import columns_flag, proposed
from freshet_graph.stream.decode.validate import Rules, check
from freshet_graph.stream.microbatch import RawBatch
from freshet_graph.stream.service.failure import Failure

_SAMPLES = 20
"""Messages of a poll from which paths are proposed, if their format shows them."""
_SHOWN = 3
"""Examples of events, and of refusals for each reason."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial.

    Attributes:
        messages: Messages or rows that were looked at.
        events: Events, or labels, that they became.
        refused: How many were refused for each reason.
        fields: The path or column of each field of an event, as read; as proposed if nothing could be read.
        examples: The first events and refusals by offset, or by row from 0.
        many: The topic's key of that name: ``.`` if messages are arrays or lines; None: each is an event.
        proposal: Keys of a stream's configuration that read the topic like this, or ``columns``, the flag of a file; None: it
            had them.
    """

    messages: int
    events: int
    refused: dict[str, int]
    fields: dict[str, Any]
    examples: list[dict[str, Any]] = field(default_factory=list)
    many: str | None = None
    proposal: dict[str, Any] | None = None


def try_file(path: Path, options: FileOptions, rows: int) -> Trial:
    """Read the first rows of a file.

    Args:
        path: The file.
        options: How it is read. If they name no columns and it lacks required ones, proposed columns are tried.
        rows: Most rows.

    Raises:
        Failure: It cannot be read.
    """
    with readable(path):
        opened, columns_flag = _opened(path, options)
        columns, ids = opened.columns, id_kind(opened.schema)
        looked_at, events, refused = 0, 0, Counter[str]()
        examples: list[dict[str, Any]] = []
        for some in islice(opened.rows, 1):
            draft = columns.draft(some, ids)
            node_features, edge_features = (first_width(draft, node=node) for node in (True, False))
            rules = Rules(ids, node_features, edge_features, offline=True, file_unit=columns.unit)
            check(draft, rules, columns.shown)
            looked_at = min(rows, len(draft.batch))
            is_accepted = draft.faults.accepted[:looked_at]
            accepted = draft.events()[: is_accepted.sum()]
            events = len(accepted)
            examples = _events(accepted.append_column("offset", pa.array(np.flatnonzero(is_accepted))))
            faults = [(int(row), *draft.faults.of(int(row))) for row in np.flatnonzero(~is_accepted)]
            refused = Counter(str(reason) for _, reason, _ in faults)
            examples += _refusals(
                {"offset": row, "reason": reason, "sentence": s} for row, reason, s in faults
            )
    fields: dict[str, Any] = {name: column for column, name in columns.events.items()}
    fields |= {"features": list(columns.features)} if columns.features else {}
    proposal = None if columns_flag is None else {"columns": columns_flag}
    return Trial(looked_at, events, dict(refused), fields, examples, proposal=proposal)


def _opened(path: Path, options: FileOptions) -> tuple[OpenedFile, str | None]:
    """The file by its options, or by proposed columns, and these, if it lacks required ones and the options name none."""
    try:
        return open_rows(path, None, options=options), None
    except ColumnMissingError as error:
        fields = proposed(error.header)
        if options.columns is not None or not fields.keys() >= {"src", "dst", "t"}:
            raise
        columns = columns_flag(fields)
        return open_rows(path, None, options=options.model_copy(update={"columns": columns})), columns


def try_messages(kafka: Kafka, topic: Topic, raws: Sequence[RawBatch], config: StreamConfig | None) -> Trial:
    """Decode messages of a topic.

    Args:
        kafka: Brokers and the schema registry.
        topic: Name and format; with a configuration, as that has it.
        raws: The messages.
        config: Of the stream; None: both kinds of ids are tried, the topic's own fields and proposed ones, and what gives the
            most events is shown.

    Raises:
        Failure: The format is unknown, or messages name schemas and no registry is known.
        UnavailableError: What the format needs is not there.
    """
    if config is None:
        kafka, topic = _with_header(kafka, topic, raws)
    contents = [_behind_header(kafka, raw) for raw in raws]
    paths = [*_paths(contents), *_sampled(kafka, topic, contents), *_headers(raws)]
    fields: dict[str, Any] = _with_record(proposed(list(dict.fromkeys(paths))), raws)
    if config is not None:
        best = _decoded(topic, config, raws)[0]
        return replace(best, fields=_read_from(topic, fields, best), many=topic.many)
    if topic.format in _WITH_LINES and any(map(_is_several, _values(contents))):
        topic = topic.model_copy(update={"many": "."})
    topics = [topic]
    if {"src", "dst", "t"} <= fields.keys():
        topics.append(topic.model_copy(update={"fields": Fields.model_validate(fields)}))
    trials = list(_trials(topics, kafka, raws))
    if not any(made.events for made, *_ in trials):
        units = [
            one.model_copy(update={"time_unit": unit})
            for one, unit in product(topics, ("ms", "s", "us", "ns"))
        ]
        trials += _trials(units, kafka, raws)
    # An event counts half if an id of it is of the other kind. If none is read, what is wrong with the proposal is shown.
    best, _, used, ids = max(trials, key=_merit)
    keys = used.model_dump(exclude_defaults=True, mode="json")
    section: dict[str, Any] = {"topics": [keys]}
    if kafka.schema_registry is not None:
        section |= {"schema_registry": kafka.schema_registry.model_dump(exclude_defaults=True, mode="json")}
    proposal = {"ids": ids, "kafka": section}
    return replace(best, fields=_read_from(used, fields, best), many=used.many, proposal=proposal)


def _merit(made: tuple[Trial, int, Topic, str]) -> tuple[float, bool, int]:
    trial, converted, topic, _ = made
    return trial.events - converted / 2, topic.fields is not None, -trial.refused.get("bad_id", 0)


def _trials(
    topics: Sequence[Topic], kafka: Kafka, raws: Sequence[RawBatch]
) -> Iterator[tuple[Trial, int, Topic, str]]:
    """Each topic with both kinds of ids: the result, its converted events, and both."""
    for one, ids in product(topics, ("int", "string")):
        keys = {"graph": "trial", "store": "trial", "ids": ids}
        config = StreamConfig.model_validate({**keys, "kafka": kafka.model_copy(update={"topics": [one]})})
        yield *_decoded(one, config, raws), one, ids


def _read_from(topic: Topic, proposed: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """The path of each field: the topic's own, or what is proposed; without a mapping that is what has the field's name."""
    if topic.fields is not None:
        return topic.fields.model_dump(exclude_none=True)
    return {name: path for name, path in proposed.items() if path == name} if trial.events else proposed


def _with_record(fields: dict[str, str], raws: Sequence[RawBatch]) -> dict[str, str]:
    """Proposed fields; a time, and one of the two ends, that no message has are looked for beside it."""
    if not fields.keys() & {"src", "dst"}:
        return fields
    keys = [raw.beside["$key"] for raw in raws if "$key" in raw.beside]
    if keys and not any(column.null_count for column in keys):
        fields = {"src": "$key", "dst": "$key"} | fields
    return {"t": "$timestamp"} | fields


def _decoded(topic: Topic, config: StreamConfig, raws: Sequence[RawBatch]) -> tuple[Trial, int]:
    """The result, and the number of events with an id of the other kind."""
    decoder = Decoder(topic, config)
    batches = [decoder.decode(raw) for raw in raws]
    refused = [reject for batch in batches for reject in batch.rejects.to_pylist()]
    shown = (
        _events(batch.events, partition=batch.partition)
        if batch.labels is None
        else _labels(batch.labels, partition=batch.partition)
        for batch in batches
    )
    examples = [example for some in shown for example in some][:_SHOWN]
    keys = ("partition", "offset", "reason", "sentence")
    trial = Trial(
        sum(len(raw.values) for raw in raws),
        sum((batch.events if batch.labels is None else batch.labels).num_rows for batch in batches),
        dict(Counter(reject["reason"] for reject in refused)),
        {},
        [*examples, *_refusals({key: reject[key] for key in keys} for reject in refused)],
    )
    return trial, sum(batch.converted for batch in batches)


def _events(events: pa.Table | pa.RecordBatch, **place: int) -> list[dict[str, Any]]:
    shown = events.slice(0, _SHOWN)
    if not shown.num_rows:
        return []
    offsets = shown["offset"].to_pylist()
    messages = encode_json(shown)
    return [{**place, "offset": o, "event": json.loads(m)} for o, m in zip(offsets, messages, strict=True)]


def _labels(labels: pa.RecordBatch, **place: int) -> list[dict[str, Any]]:
    shown = []
    for label in labels.slice(0, _SHOWN).to_pylist():
        offset, t_us = label.pop("offset"), label.pop("t")
        given = {name: value for name, value in label.items() if value is not None}
        shown.append({**place, "offset": offset, "label": {**given, "t": t_us / US_PER_S}})
    return shown


def _refusals(refused: Iterator[Mapping[str, Any]]) -> list[dict[str, Any]]:
    seen: Counter[str] = Counter()
    shown = []
    for refusal in refused:
        seen[refusal["reason"]] += 1
        if seen[refusal["reason"]] <= _SHOWN:
            shown.append(dict(refusal))
    return shown


_WITH_LINES = frozenset({"json"})


def _is_several(value: bytes) -> bool:
    """Whether a message is an array, or has several objects."""
    return value.lstrip()[:1] == b"[" or len(_objects(value)) > 1


def _values(contents: Sequence[pa.LargeBinaryArray]) -> Iterator[bytes]:
    """Messages, without Confluent's header if they have it."""
    for values in contents:
        yield from (value for value in without_header(values)[0].to_pylist() if value is not None)


def _with_header(kafka: Kafka, topic: Topic, raws: Sequence[RawBatch]) -> tuple[Kafka, Topic]:
    """Both as the messages need them if they name schemas: the kind of header, and the format that the registry knows.

    Raises:
        Failure: No registry is given.
        UnavailableError: It does not answer.
    """
    kind = next(filter(None, (recognised(raw.values, raw.beside) for raw in raws)), None)
    if kind is None:
        return kafka, topic
    registry = kafka.schema_registry or (SchemaRegistry() if kind != "confluent" else None)
    if registry is not None:
        kafka = kafka.model_copy(update={"schema_registry": registry.model_copy(update={"header": kind})})
    contents = [_behind_header(kafka, raw) for raw in raws]
    if topic.format not in _WITH_LINES or any(
        value.lstrip()[:1] in (b"{", b"[") for value in _values(contents)
    ):
        return kafka, topic
    if registry is None or not registry.urls:
        raise Failure(
            f"topic {topic.name}: its messages name schemas ({kind} header). Give --registry URL of their registry, or --config "
            "FILE with kafka.schema_registry"
        )
    client = RegistryClient(registry)
    for number in np.unique(np.concatenate([schema_ids(values) for values in contents])).tolist():
        with suppress(UnknownSchemaError):
            name = _FORMATS.get(client.kind(number), topic.format) if number >= 0 else topic.format
            topic = topic.model_copy(update={"format": name})
    return kafka, topic


_FORMATS = {"AVRO": "avro", "PROTOBUF": "protobuf"}
"""The format of messages by the kind of their schemas, if it is not JSON."""


def _behind_header(kafka: Kafka, raw: RawBatch) -> pa.LargeBinaryArray:
    """The messages of a poll behind Confluent's header, if they name schemas."""
    return SchemaHeader(kafka, "value").as_confluent(raw.values, raw.beside)


def _sampled(kafka: Kafka, topic: Topic, contents: Sequence[pa.LargeBinaryArray]) -> Iterator[str]:
    """Paths of keys in messages that their format shows."""
    made = create_format(topic.model_copy(update={"fields": None, "ops": None}), kafka, "int")
    for values in contents:
        for one in made.samples(values.drop_null()[:_SAMPLES]):
            yield from leaves(one)


def _objects(value: bytes) -> list[dict[str, Any]]:
    """The JSON objects in a message: itself, the elements of an array, or those of its lines."""
    for texts in ([value], value.splitlines()):
        with suppress(ValueError):
            parsed = [json.loads(text) for text in texts if text.strip()]
            elements = parsed[0] if len(parsed) == 1 and isinstance(parsed[0], list) else parsed
            return [one for one in elements if isinstance(one, dict)]
    return []


def _paths(contents: Sequence[pa.LargeBinaryArray]) -> Iterator[str]:
    """Paths of keys in messages of JSON, and names of columns in those of Arrow."""
    for value in _values(contents):
        if objects := _objects(value):
            for one in objects:
                yield from leaves(one)
            continue
        with suppress(pa.ArrowException):
            yield from pa.ipc.open_stream(value).schema.names


def _headers(raws: Sequence[RawBatch]) -> Iterator[str]:
    for name in dict.fromkeys(name for raw in raws for name in raw.beside):
        if name.startswith("$headers."):
            yield "$headers." + name.removeprefix("$headers.").replace("\\", "\\\\").replace(".", "\\.")
