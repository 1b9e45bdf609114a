"""Everything that speaks Kafka: reading topic partitions, replaying files, dead letters, group offsets, the demo's broker."""

from importlib.metadata import version

from freshet_graph.stream.service.failure import Failure

KNOWN_CLIENT = "3.0.12"
"""The version of kafka-python that ``receiving.py``, ``records.py`` and ``topics.py`` are written for: they replace and read
parts that are not its public interface, which any release may change. Lost or doubled messages would be the worst result."""

if version("kafka-python") != KNOWN_CLIENT:
    raise Failure(
        f"kafka-python {version('kafka-python')} is not {KNOWN_CLIENT}, of which Freshet replaces parts. Install kafka-python "
        f"{KNOWN_CLIENT}."
    )
