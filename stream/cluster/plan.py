"""The plan of a job for its workers, and which submission may read for a store.

The plan is the configuration without its secrets, and where reading begins. Each source of every job looks at a small file beside
the log: a runner that cancels may leave sources running, and a job whose submitter died is never cancelled. So sources end by
themselves as soon as the store no longer names their submission.
"""

import json
import socket
import uuid
from dataclasses import dataclass
from typing import Any, Self

from pydantic import SecretStr
from pydantic_core import to_jsonable_python

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.kafka.reader import Start
from freshet_graph.stream.pipeline import held_object
from freshet_graph.stream.service.config_file import validated
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.places.place import Place, place_of


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A submitted job, picklable and fit to be shown.

    Runners log and list pipelines, so a plan has no secrets. A worker's environment variables (``FRESHET_STREAM_…``)
    override it, as they override a file: they have passwords, and settings of the worker's host. Workers in the job's
    own process find the whole configuration there.

    Attributes:
        id: Of this submission; another one of the same configuration has another.
        settings: The configuration as JSON, without secrets.
        starts: The topic partitions, and their offsets when the job was submitted.
        topic_ids: Kafka's ids of the topics in the log, for its commits.
    """

    id: str
    settings: str
    starts: tuple[Start, ...]
    topic_ids: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, config: StreamConfig, starts: list[Start]) -> Self:
        """A new submission of a configuration."""
        settings = json.dumps(to_jsonable_python(_without_secrets(config.model_dump())))
        return cls(id=uuid.uuid4().hex, settings=settings, starts=tuple(starts))

    @property
    def graph(self) -> str:
        """The graph's name."""
        return str(json.loads(self.settings)["graph"])

    def config(self) -> StreamConfig:
        """The configuration that applies in this process.

        Raises:
            Failure: It isn't complete: this process's environment lacks secrets, or has variables that don't fit.
        """
        here = held_object(self.id, StreamConfig)
        if here is not None:
            return here
        where = f"a worker on {socket.gethostname()} has no complete configuration"
        try:
            return validated(StreamConfig, json.loads(self.settings), where)
        except Failure as error:
            raise Failure(
                f"{error}. Secrets don't travel with the job. Give them to the worker's environment, such as "
                "FRESHET_STREAM_KAFKA__SASL_PASSWORD"
            ) from None


def _without_secrets(content: Any) -> Any:
    if isinstance(content, dict):
        return {
            key: _without_secrets(value) for key, value in content.items() if not isinstance(value, SecretStr)
        }
    if isinstance(content, (list, tuple)):
        return [_without_secrets(value) for value in content]
    return content


def announce(store: str | Place, submission: str) -> None:
    """Let this submission read for the store; every other one ends."""
    (place_of(store) / "job" / "current").put(f"{submission}\n".encode("ascii"))


def withdraw(store: str | Place, submission: str) -> None:
    """End this submission's sources, unless another one has been announced since."""
    if is_current(store, submission):
        (place_of(store) / "job" / "current").unlink(missing_ok=True)


def is_current(store: str | Place, submission: str) -> bool:
    """Whether this submission is the one that reads for the store."""
    try:
        return (place_of(store) / "job" / "current").read_bytes().decode("ascii").strip() == submission
    except FileNotFoundError:
        return False
