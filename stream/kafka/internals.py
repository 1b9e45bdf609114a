"""The internals of kafka-python that Freshet replaces or reads, checked by name and signature before use.

They are not the client's public interface, so any release may change them. Lost or doubled messages would be the
worst result. Here it is one sentence at the start.
"""

import inspect
from importlib import import_module
from importlib.metadata import version
from typing import Any

from stream.service.failure import Failure

KNOWN = "3.0.12"
"""The version that this is written for and tested with; ``constraints.txt`` pins it."""

_FETCHER, _RECORDS = "kafka.consumer.fetcher:Fetcher", "kafka.consumer.fetcher:Fetcher.PartitionRecords"
_BATCH, _TRANSPORT = (
    "kafka.record.default_records:DefaultRecordBatch",
    "kafka.net.transport:KafkaTCPTransport",
)
_PARSER, _MANAGER = "kafka.protocol.parser:KafkaProtocol", "kafka.net.manager:KafkaConnectionManager"
_CLUSTER = "kafka.cluster:ClusterMetadata"

SIGNATURES = {
    f"{_RECORDS}.__init__": (
        "self fetch_offset tp records key_deserializer value_deserializer check_crcs isolation_level "
        "aborted_transactions metric_aggregator on_drain"
    ),
    f"{_RECORDS}._maybe_skip_record": "self record",
    f"{_RECORDS}._unpack_records": "self tp records key_deserializer value_deserializer",
    f"{_RECORDS}._consume_aborted_transactions_up_to": "self offset",
    f"{_RECORDS}._is_batch_aborted": "self batch",
    f"{_RECORDS}._contains_abort_marker": "self batch",
    f"{_RECORDS}.drain": "self",
    f"{_FETCHER}.send_fetches": "self",
    f"{_BATCH}.validate_crc": "self",
    f"{_BATCH}.has_producer_id": "self",
    "kafka.record.memory_records:MemoryRecords.next_batch": "self _min_slice _magic_offset",
    f"{_TRANSPORT}.__init__": "self net sock host",
    f"{_TRANSPORT}._read_from_sock": "self",
    f"{_TRANSPORT}.abort": "self error",
    "kafka.net.transport:KafkaSSLTransport.__init__": "self net sock host configs",
    f"{_PARSER}.receive_bytes": "self data",
    f"{_MANAGER}.__init__": "self net configs",
    f"{_MANAGER}._build_transport": "self node timeout_at",
    "kafka.net.compat:KafkaNetClient.__init__": "self net manager configs",
    f"{_CLUSTER}.leader_for_partition": "self partition",
    f"{_CLUSTER}.broker_metadata": "self broker_id",
    f"{_CLUSTER}.add_listener": "self listener",
    "kafka.net.selector:NetworkSelector.__init__": "self configs",
    "kafka.net.sasl:get_sasl_mechanism": "name",
}
"""Functions that are replaced or called, and their parameters."""

NAMES = {
    "kafka.consumer.group:KafkaConsumer.__init__": "_fetcher _cluster",
    f"{_FETCHER}._send_list_offsets_request": "_isolation_level",
    f"{_FETCHER}.__init__": "_nodes_with_pending_fetch_requests",
    f"{_FETCHER}._parse_fetched_data": "PartitionRecords",
    f"{_RECORDS}.__init__": (
        "fetch_offset topic_partition leader_epoch next_fetch_offset isolation_level aborted_producer_ids check_crcs"
    ),
    f"{_BATCH}.__init__": "_buffer _pos",
    f"{_TRANSPORT}.__init__": "_net _sock _closed _protocol _read last_read",
    f"{_PARSER}.__init__": "_header _rbuffer _receiving",
    f"{_PARSER}.receive_bytes": "_header _rbuffer _receiving",
    "kafka.net.connection:KafkaConnection.__init__": "parser",
}
"""Functions, and the attributes that they must set or use by these names."""


def require_known() -> None:
    """Check that the installed client's internals are the known ones.

    Raises:
        Failure: Something has another name or signature.
    """
    for place, parameters in SIGNATURES.items():
        found = " ".join(inspect.signature(_found(place)).parameters)
        if found != parameters:
            raise _other(
                f"{_short(place)} takes ({', '.join(found.split())}), not ({', '.join(parameters.split())})"
            )
    for place, names in NAMES.items():
        used = _found(place).__code__.co_names
        for name in names.split():
            if name not in used:
                raise _other(f"{_short(place)} knows no {name}")


def _found(place: str) -> Any:
    module, _, path = place.partition(":")
    try:
        thing: Any = import_module(module)
        for name in path.split("."):
            thing = getattr(thing, name)
    except (ImportError, AttributeError):
        raise _other(f"there is no {_short(place)}") from None
    return thing


def _short(place: str) -> str:
    return place.replace(":", ".")


def _other(difference: str) -> Failure:
    return Failure(
        f"kafka-python {version('kafka-python')} differs from {KNOWN}, the version that Freshet knows: {difference}. "
        f"Install kafka-python {KNOWN}."
    )
