"""Configuration of the stream service: one YAML file, checked key by key, environment variables over it."""

import hashlib
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from freshet_graph.schemas.events import IdKind
from freshet_graph.schemas.fields import MAX_PARTS, HashFeature
from freshet_graph.schemas.kafka_config import Kafka, SaslOAuth, SchemaRegistry, Topic, TopicName
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store_address import Store

__all__ = [
    "Features", "Kafka", "Lane", "Metrics", "Name", "Publication", "Retention", "Runner", "SaslOAuth", "SchemaRegistry",
    "Service", "Snapshots", "StreamConfig", "Topic", "TopicName",
]  # fmt: skip

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""A graph's or lane's name: it becomes a folder, so no separators and no leading dot."""

_MOST_S = 1e11
"""Three thousand years: longer intervals are mistakes, and their microseconds would leave int64 near its ends."""


class Service(BaseSettings):
    """Base of both services' configuration: the file, overridden by the environment."""

    model_config = SettingsConfigDict(
        env_nested_delimiter="__",
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first, then the file's keys (given as init arguments)."""
        return env_settings, init_settings

    def digest(self) -> str:
        """Twelve hex digits that change with the configuration."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]


class Metrics(Section):
    """Where Prometheus metrics and the health endpoints are served."""

    host: str = Field("127.0.0.1", description="Address to bind; in containers 0.0.0.0, or :: with IPv6.")
    port: int = Field(9108, ge=0, le=65535, description="0: any free port, printed at start.")
    hung_after_s: float = Field(
        300.0,
        gt=0,
        description="/healthz fails when the main loop has not moved for this long; longer than any commit or training step.",
    )


class Snapshots(Section):
    """Event-time rules; docs/semantics.md defines them."""

    interval_s: float = Field(
        300.0,
        ge=1e-6,
        le=_MOST_S,
        description="Length of a snapshot in seconds of event time, aligned to the epoch. Models learn a snapshot once it is "
        "sealed, so shorter ones keep them fresher. It is fixed for the life of a log.",
    )
    lateness_s: float = Field(
        0.0, ge=0, le=_MOST_S, description="Out-of-orderness allowed within a topic partition, seconds."
    )
    late: Literal["next-snapshot", "dead-letter"] = Field(
        "next-snapshot", description="Where events of a sealed snapshot go."
    )
    idle_timeout_s: float = Field(
        30.0, gt=0, description="A partition with nothing unread for this long no longer holds the watermark."
    )
    idle_seal_s: float | None = Field(
        None,
        gt=0,
        description="Seal the open snapshot once all partitions are idle for this long; null: never.",
    )
    commit_every_s: float = Field(
        10.0, gt=0, description="Longest time before open events are durable, seconds."
    )
    max_pending_bytes: int = Field(
        256 << 20,
        ge=1,
        description="Most bytes of events that are read but not committed, and as many again during a commit. Beyond them "
        "reading waits for the disk.",
    )
    max_open_bytes: int = Field(
        4 << 30, ge=1, description="Most bytes of events in open snapshots; beyond them the stream ends."
    )


class Features(Section):
    """Widths of feature vectors; fixed for the life of a log."""

    node: int = Field(0, ge=0, le=65_536, description="Width F of node features; 0: none are taken.")
    edge: int = Field(0, ge=0, le=65_536, description="Width of edge features; 0: none are taken.")
    segments: int = Field(
        4, ge=1, le=1024, description="S: slices in which changed node features are stored."
    )

    def misfit(self, topic: Topic) -> str | None:
        """Why events with features of a mapped topic could never be accepted; None if they can."""
        fields = topic.fields
        if fields is None:
            return None
        ends = {"features.edge": (fields.src, self.edge), "features.node": (fields.node, self.node)}
        widths = {key: width for key, (path, width) in ends.items() if path is not None}
        sizes = " and ".join(f"{key} is {width}" for key, width in widths.items())
        where = f"kafka.topics: fields of topic {topic.label}"
        if isinstance(fields.features, list):
            made = [one.width if isinstance(one, HashFeature) else 1 for one in fields.features]
            count = sum(made)
            if count not in widths.values():
                of_values = "" if count == len(made) else f", {count} values"
                return (
                    f"{where} lists {len(made)} paths of features{of_values}, but {sizes}. "
                    f"Set {' or '.join(widths)} to {count}"
                )
        if fields.features is not None and not any(widths.values()):
            return f"{where} names features, but {sizes}. Set {' or '.join(widths)} to their number"
        if fields.values is not None and not self.node:
            return f"{where} names values, but features.node is 0. Set it to the number of a node's features"
        return None


class Lane(Section):
    """One partitioner's view of the log."""

    name: Name = Field(description="Folder of the lane in the store.")
    algorithm: str = Field(description="A partitioner: freshet-stream partition --help lists them.")
    parts: int = Field(ge=1, le=MAX_PARTS, description="K, the number of parts.")
    window: int = Field(4, ge=1, description="w: snapshots that trainers look back.")
    edge_life: int | None = Field(
        None, ge=1, description="Intervals an edge lives after its last occurrence; null: until deleted."
    )
    seed: int = Field(0, ge=0, le=10**18, description="Seed of the partitioner's draws.")
    base_every: int = Field(
        64,
        ge=1,
        description="Snapshots between bases, which have the whole content of all parts. A base also waits for events on a "
        "quarter of the live pairs. May be changed at any time.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict,
        description="Parameters of the algorithm; docs/partitioning.md describes those of each.",
    )


class Retention(Section):
    """Snapshots that the store keeps: a snapshot stays while either rule keeps it; without a rule all stay."""

    snapshots: int | None = Field(
        None, ge=1, description="Number of newest snapshots to keep; null: by time only."
    )
    time_s: float | None = Field(
        None,
        gt=0,
        le=_MOST_S,
        description="Keep those that end within so many seconds of event time before the newest one's end; null: by count "
        "only. Older ones are dropped an eighth of the kept span at a time; their effects stay.",
    )


WITH_REGISTRY = frozenset({"avro"})
"""Formats of publications whose messages name a schema in the registry."""


class Publication(Section):
    """A trainer's exports in a topic: whole exports in order, at least once."""

    exports: Name = Field(
        description="Folder under exports/ in the store: the trainer's exports.name, else its lane."
    )
    kind: Literal["embeddings", "scores"] = Field("embeddings", description="Kind of the exported files.")
    topic: TopicName = Field(description="Target topic; made if it is missing.")
    format: Literal["json", "avro", "arrow"] = Field(
        "json",
        description="json, avro: one message per row, keyed by the node's or event's id; arrow: up to 4,096 rows per message.",
    )
    partitions: int = Field(1, ge=1, description="Partitions of a topic that is made.")


class Runner(Section):
    """Where the pipeline runs: in this process, or on Flink through Beam's portable runner."""

    name: Literal["local", "flink"] = Field(
        "local", description="local: in this process; flink: on a cluster."
    )
    job_server: str | None = Field(
        None, pattern=r"^[^/\s]+:\d+$", description="host:port of Beam's Flink job server; with flink."
    )
    environment: str = Field(
        "loopback",
        pattern=r"^(loopback|external:[^/\s]+:\d+)$",
        description="Runs the stages: loopback (this process) or external:host:port (worker pools).",
    )
    parallelism: int = Field(
        1,
        ge=1,
        le=4096,
        description="Tasks that read and validate; more than the topic partitions bring nothing.",
    )
    workers: int = Field(
        1, ge=1, le=1024, description="Worker processes per task manager; with loopback all are this process."
    )
    restarts: int = Field(
        100, ge=0, description="Failures after which Flink starts the job again before it gives up."
    )
    restart_delay_s: float = Field(3.0, ge=0, description="Pause before each new start, seconds.")

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.name == "flink" and self.job_server is None:
            raise ValueError(
                "job_server is missing: host:port of the Flink job server (deploy/flink starts one)"
            )
        return self


class StreamConfig(Service):
    """Configuration of freshet-stream."""

    model_config = SettingsConfigDict(env_prefix="FRESHET_STREAM_")

    graph: Name = Field(description="Name of the graph: a label of every metric.")
    store: Store = Field(min_length=1, description="Folder of the store, or its address: s3://bucket/prefix.")
    kafka: Kafka
    snapshots: Snapshots = Field(default_factory=Snapshots)
    time_bounds: tuple[float, float | None] | None = Field(
        None,
        description="Allowed event times [min, max] in seconds; max null: the present plus time_skew_s; default: 1990 to that.",
    )
    time_skew_s: float = Field(
        300.0, ge=0, description="Largest difference between producers' clocks and this host's, seconds."
    )
    ids: IdKind = Field("int", description="Kind of node ids.")
    features: Features = Field(default_factory=Features)
    dedup_window_s: float | None = Field(
        None,
        gt=0,
        le=_MOST_S,
        description="An event is dropped and counted if one with its event_id was accepted within so many seconds of event "
        "time; null: none is dropped.",
    )
    dedup_max_ids: int = Field(
        20_000_000,
        ge=1,
        description="Most event ids remembered, up to 144 bytes each; further ids are only counted.",
    )
    lanes: list[Lane] = Field(default_factory=list, description="Partitioners that follow the log.")
    publish: list[Publication] = Field(
        default_factory=list, description="Exports of trainers to publish in topics of the same brokers."
    )
    retention: Retention = Field(default_factory=Retention)
    metrics: Metrics = Field(default_factory=Metrics)
    runner: Runner = Field(default_factory=Runner)
    cycle_s: float = Field(
        300.0, gt=0, description="Seconds after which the local pipeline is renewed from the last commit."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for topic in self.kafka.topics:
            if topic.id_prefix and self.ids != "string":
                raise ValueError(
                    f"kafka.topics: id_prefix of topic {topic.label} makes ids text, but ids is int. Set ids: string"
                )
            if (misfit := self.features.misfit(topic)) is not None:
                raise ValueError(misfit)
        names = [lane.name for lane in self.lanes]
        if len(set(names)) < len(names):
            raise ValueError(f"lanes must have distinct names, found {names}")
        taken = {self.kafka.dead_letters, *(topic.name for topic in self.kafka.topics)}
        topics = [one.topic for one in self.publish]
        for wanted in topics:
            if wanted in taken or topics.count(wanted) > 1:
                raise ValueError(
                    f"publish: topic {wanted} is used twice. Give each publication a topic of its own, neither one that is "
                    "read nor that of the dead letters"
                )
        self.kafka._publications = frozenset(topics)
        if self.kafka.has_patterns and self.runner.name == "flink":
            raise ValueError("kafka.topics: pattern needs runner.name local. Name the topics for Flink")
        registry = self.kafka.schema_registry
        if any(one.format in WITH_REGISTRY for one in self.publish) and not (registry and registry.url):
            raise ValueError(
                "publish: format avro needs a registry. Give its address in kafka.schema_registry.url"
            )
        low_high = self.time_bounds
        if low_high is not None and any(abs(bound) > _MOST_S for bound in low_high if bound is not None):
            raise ValueError(f"time_bounds must lie within ±{_MOST_S:.0e} seconds, found {list(low_high)}")
        if low_high is not None and low_high[1] is not None and low_high[1] <= low_high[0]:
            raise ValueError(f"time_bounds must be [min, max] with min < max, found {list(low_high)}")
        return self
