"""What a worker needs to open its stages: the configuration without its secrets, and where reading begins."""

import json
import uuid
from dataclasses import dataclass
from typing import Any, Self

from pydantic import SecretStr

from schemas.config import StreamConfig
from stream.held import find_held
from stream.kafka.reader import Start


@dataclass(frozen=True, slots=True)
class Plan:
    """A job as its workers get it: picklable, and fit to be shown.

    Pipelines are logged and listed by runners, so no secret is in it. A worker's own environment variables
    (``FRESHET_STREAM_…``) are put over it, as over a file: passwords come from there, and whatever differs on its
    host. Workers in the job's own process find the whole configuration there.

    Attributes:
        id: Of this submission; another one of the same configuration has another.
        settings: The configuration as JSON, secrets left out.
        starts: The topic partitions, and where each was when the job was submitted.
    """

    id: str
    settings: str
    starts: tuple[Start, ...]

    @classmethod
    def of(cls, config: StreamConfig, starts: list[Start]) -> Self:
        """A new submission of a configuration."""
        settings = json.dumps(_shown(config.model_dump(mode="python")))
        return cls(id=uuid.uuid4().hex, settings=settings, starts=tuple(starts))

    def config(self) -> StreamConfig:
        """The configuration that holds in this process.

        Raises:
            ValidationError: This process's environment variables don't fit.
        """
        return find_held(self.id, StreamConfig) or StreamConfig(**json.loads(self.settings))


def _shown(content: Any) -> Any:
    """The same without secrets, in JSON's types."""
    if isinstance(content, dict):
        return {key: _shown(value) for key, value in content.items() if not isinstance(value, SecretStr)}
    if isinstance(content, (list, tuple)):
        return [_shown(value) for value in content]
    return content
