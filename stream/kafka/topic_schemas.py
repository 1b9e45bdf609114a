"""Schemas of the topics that Freshet writes, in the registry."""

import structlog

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import IdKind
from freshet_graph.schemas.written import Written, json_schema
from freshet_graph.stream.decode.formats.interface import UnavailableError
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient
from freshet_graph.stream.service.failure import Failure

log = structlog.get_logger()


def announce(kafka: Kafka, topic: str, kind: Written, ids: IdKind | None) -> None:
    """Register the JSON Schema of a topic's messages under ``<topic>-value``, if a registry is configured.

    Messages do not depend on it, so a registry that is away or refuses costs a line of the log.
    """
    if kafka.schema_registry is None:
        return
    try:
        RegistryClient(kafka.schema_registry).register(f"{topic}-value", json_schema(kind, ids), "JSON")
    except (Failure, UnavailableError) as error:
        log.warning("schema of a topic not registered", topic=topic, error=one_line(error))
