"""The stream service: Kafka events become a durable log, and every lane a partitioner's view of it.

Other programs use ``open_store``, ``partition_file`` and ``replay_file``, each loaded on first use.
"""

from typing import TYPE_CHECKING, Any

from freshet_graph.stream.lazily import loaded

if TYPE_CHECKING:
    from freshet_graph.stream.kafka.producer import replay_file
    from freshet_graph.stream.offline import partition_file
    from freshet_graph.stream.store.opened import open_store

__all__ = ["open_store", "partition_file", "replay_file"]

_HOMES = {
    "open_store": "freshet_graph.stream.store.opened",
    "partition_file": "freshet_graph.stream.offline",
    "replay_file": "freshet_graph.stream.kafka.producer",
}


def __getattr__(name: str) -> Any:
    return loaded(__name__, name, _HOMES)
