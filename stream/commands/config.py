"""``freshet-stream config``: print a commented example, or check a file."""

from typing import Any

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.service.config_command import config_command
from freshet_graph.stream.service.failure import Failure

EXAMPLE: dict[str, Any] = {
    "graph": "demo",
    "store": "./store",
    "kafka": {
        "bootstrap": "127.0.0.1:9092",
        "topics": [{"name": "edges", "format": "json"}],
        "dead_letters": "edges.dead",
    },
    "snapshots": {"interval_s": 300.0, "lateness_s": 0.0, "late": "next-snapshot"},
    "ids": "int",
    "lanes": [{"name": "sep", "algorithm": "sep", "parts": 2, "params": {"hubs": 0.05}}],
    "metrics": {"port": 9108},
}


def require_parts(config: StreamConfig) -> None:
    """Check what types cannot: that each topic's format and each lane's partitioner can be made.

    Raises:
        Failure: One cannot; the sentence names the topic or lane.
    """
    from freshet_graph.stream.decode.formats.interface import create_format
    from freshet_graph.stream.partition.interface import PartitionError, create_for_lane

    for topic in config.kafka.topics:
        create_format(topic, config.kafka, config.ids)
    for lane in config.lanes:
        try:
            create_for_lane(lane.algorithm, lane.params, parts=lane.parts, seed=lane.seed, window=lane.window)
        except PartitionError as error:
            raise Failure(f"lanes[{lane.name}]: {error}") from error


def _example() -> dict[str, Any]:
    """The values in the example, with the options of its partitioner."""
    from freshet_graph.stream.partition.interface import PARTITIONERS  # loading kernels takes a second

    lanes = [
        {**lane, "params": PARTITIONERS.options(lane["algorithm"], lane["params"])}
        for lane in EXAMPLE["lanes"]
    ]
    return {**EXAMPLE, "lanes": lanes}


config = config_command("stream", StreamConfig, _example, require_parts)
