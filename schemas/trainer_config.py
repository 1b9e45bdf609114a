"""Configuration of the trainer service: one YAML file, checked key by key, environment variables over it."""

from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from freshet_graph.schemas.config import Metrics, Name, Service
from freshet_graph.schemas.kafka_config import Brokers, TopicName
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store_address import Store


class Replay(Section):
    """Replay of old events beside the new ones, under the strategy sequential."""

    ratio: float = Field(0.0, ge=0, le=10, description="Old events learned per new one; 0: none.")
    batches: int = Field(64, ge=1, description="Old batches kept, about 2 KiB per event.")
    sample: Literal["reservoir", "time"] = Field(
        "reservoir",
        description="Choice of old batches: each of the past equally likely, or each stretch of time equally.",
    )


class Optimisation(Section):
    """Learning of a snapshot."""

    epochs: int | None = Field(
        None,
        ge=1,
        description="Passes over a new snapshot's events; evaluate: passes over the training split. null: 2. For event models "
        "under run, null: 2, then 1 after 10,000 learned events, at twice the rate unless learning_rate is set.",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="evaluate: training ends after this many epochs in a row without a better validation. null: after all.",
    )
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        256,
        description="Events per step. vertex: per rank; pac: of all ranks, or as its option batch says; whole: at least so "
        "many. auto, for event models under run: 256 up to 3,000 events per second, doubled each time the rate doubles, up to "
        "1,024; evaluate: 256.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Of Adam. null: 0.001; under whole, group and hybrid, whose steps are few and large, 0.005.",
    )
    rate: Literal["constant", "decay", "on-drift"] = Field(
        "constant",
        description="Learning rate after the warm-up. decay: falling with the root of the steps; on-drift: the same, and "
        "again from the warm-up when the model predicts worse (key drift).",
    )
    warm_up_steps: int = Field(0, ge=0, description="Steps in which the rate rises from 0.")
    decay_steps: int = Field(
        10_000, ge=1, description="decay and on-drift: the rate is halved after three times this many steps."
    )
    weight_decay: float = Field(0.0, ge=0, description="Of Adam.")
    replay: Replay = Field(default_factory=Replay)
    grad_clip: float | None = Field(1.0, gt=0, description="Largest gradient norm; null: no clipping.")
    max_nonfinite: int = Field(
        3,
        ge=1,
        description="Training ends with an error after this many snapshots in a row without a finite step.",
    )

    @property
    def batch(self) -> int:
        """``batch_size``, or the first size under auto."""
        return 256 if self.batch_size == "auto" else self.batch_size

    @property
    def passes(self) -> int:
        """``epochs``, or its value for null."""
        return 2 if self.epochs is None else self.epochs


class Smoothing(Section):
    """The past in a snapshot, beside the events of its own interval; without smoothing it is the live graph."""

    kind: Literal["none", "edge-life", "m-product"] = Field(
        "none",
        description="edge-life: the sum of the raw events of the last intervals, so that the value of a pair is its number of "
        "events (or the sum of their weights); m-product: the mean of the last raw snapshots and of their nodes' inputs.",
    )
    length: int = Field(
        1, ge=1, description="edge-life: intervals; m-product: snapshots, or fewer at the beginning."
    )

    @model_validator(mode="after")
    def _is_of_a_kind(self) -> Self:
        if self.kind == "none" and self.length > 1:
            raise ValueError("length goes with kind: edge-life or kind: m-product only")
        return self


class Lag(Section):
    """The limit of lag, when the stream runs ahead of training."""

    max_snapshots: int = Field(8, ge=1, description="Largest number of waiting snapshots without lag.")


class Hold(Section):
    """When exports are held back. Nodes touched meanwhile are exported with the next released snapshot."""

    below_recency: bool = Field(
        False,
        description="Hold back while the model's AP on the newest snapshot is below that of Recency; node-regression: its MSE "
        "above that of age-aware persistence.",
    )
    ap_drop: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Hold back while the AP is lower (node-regression: the MSE higher) than its mean over the last released "
        "snapshots by more than this, such as 0.05; null: never.",
    )
    over: int = Field(
        10,
        ge=1,
        description="Released snapshots in that mean, each weighted by its events. With fewer there is no drop.",
    )


class Exports(Section):
    """Exports of each snapshot under exports/ in the store, for other programs or for publishing by freshet-stream."""

    embeddings: bool = Field(False, description="Embeddings of the nodes that the snapshot touched.")
    scores: bool = Field(False, description="Predictions of its events, made before they were learned.")
    name: Name | None = Field(None, description="Folder under exports/; null: the lane's name.")
    keep: int | None = Field(
        None,
        ge=1,
        description="Newest exports kept, beside those not yet published to a topic; null: all.",
    )
    hold: Hold = Field(default_factory=Hold)


WITH_REGISTRY = ("avro",)
"""Formats of scores that need a registry."""


class Scoring(Section):
    """Figures of new snapshots under run, and scores on arrival under score."""

    sample: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        200,
        description="Events of a snapshot, drawn evenly over its length, for the figures of random weights and of historical "
        "negatives. A twentieth of them are ranked among candidates. all: every event, 200 ranked, as in evaluate.",
    )
    topic: TopicName | None = Field(
        None, description="score: topic that gets a message for every event; it is made if it is missing."
    )
    kafka: Brokers | None = Field(None, description="score: the brokers of that topic.")
    format: Literal["json", "avro", "arrow"] = Field(
        "json",
        description="score: json, avro: a message per event; arrow: one per commit, of up to 4,096 events. avro needs "
        "scoring.kafka.schema_registry.",
    )
    start: Literal["earliest", "latest"] = Field(
        "earliest",
        description="score: the first event of a topic without scores: the first that the log keeps, or the next to arrive.",
    )
    among: int = Field(
        10_000, ge=1, description="score: newest scores among which a message says its percentile."
    )
    vectors: bool = Field(
        False, description="score: whether messages have the embeddings of both ends just before the event."
    )

    @model_validator(mode="after")
    def _avro_has_a_registry(self) -> Self:
        registry = None if self.kafka is None else self.kafka.schema_registry
        if self.format in WITH_REGISTRY and (registry is None or registry.url is None):
            raise ValueError(
                f"format {self.format} needs a registry. Give its address in scoring.kafka.schema_registry.url"
            )
        return self


class Serve(Section):
    """Answers to questions over HTTP, beside scores on arrival."""

    host: str = Field(
        "127.0.0.1",
        description="Address to bind. Others than this machine's own (127.0.0.1, ::1, localhost) need token_file.",
    )
    port: int = Field(9120, ge=0, le=65535, description="0: any free port, printed at start.")
    token_file: str | None = Field(
        None,
        description="File of the tokens that questions must carry, one per line. It is read for every question. null: none.",
    )

    @model_validator(mode="after")
    def _is_fenced(self) -> Self:
        if self.token_file is None and not _is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from other machines, and anyone there could ask. Set serve.token_file, or "
                "leave serve.host out"
            )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Drift(Section):
    """When the model's predictions count as worse than before: a sliding window against the reference before it."""

    window_events: int = Field(2_000, ge=1, description="Predicted events in the window, whole snapshots.")
    reference_events: int = Field(10_000, ge=1, description="Predicted events in the reference.")
    threshold: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="A drop of the mean AP (node-regression: a rise of the MSE) by more than this is a drift.",
    )


class Budget(Section):
    """Limits of the memory of event models. Nodes and events unseen for longest are forgotten, and counted."""

    nodes: int | None = Field(
        None,
        ge=1,
        description="Nodes with a state; those of the newest snapshot always stay. null: all nodes.",
    )
    events: int | None = Field(
        None,
        ge=1,
        description="Events from which neighbours are sampled, and with them pairs; null: all events.",
    )


class RankEndpoints(Metrics):
    """Metrics and health endpoints of each rank."""

    port: int = Field(
        9109, ge=0, le=65535, description="Port of rank 0; rank r takes port + r. 0: any free ports."
    )


class TrainerConfig(Service):
    """Configuration of freshet-trainer."""

    model_config = SettingsConfigDict(env_prefix="FRESHET_TRAINER_")

    store: Store | None = Field(
        None, description="Folder of the store, or its address s3://bucket/prefix. evaluate needs none."
    )
    lane: Name = Field(
        "sep",
        description="Lane to train on. evaluate: the algorithm that partitions the file. auto: the lane of the store, or of "
        "a few algorithms, that costs least.",
    )
    parts: int | None = Field(None, ge=1, description="evaluate: parts of the partition; null: one per rank.")
    lane_params: dict[str, Any] = Field(
        default_factory=dict,
        description="evaluate: the partitioner's own parameters, such as {hubs: 0.05}. "
        "docs/partitioning.md describes those of each.",
    )
    model: str = Field(
        "tgn-history",
        description="The model. freshet-trainer models lists them. Event models, such as tgn-history, need strategy sequential "
        "or pac; snapshot models need another one, such as vertex.",
    )
    model_params: dict[str, Any] = Field(
        default_factory=dict,
        description="The model's own parameters, such as {memory: 64}. "
        "freshet-trainer models MODEL lists them.",
    )
    task: str = Field(
        "link-prediction",
        description="The learned and judged task: link-prediction; edge-classification, of events with labels 0 and 1; "
        "node-classification and node-regression, with a snapshot model.",
    )
    task_params: dict[str, Any] = Field(
        default_factory=dict,
        description="The task's own parameters, such as {next: feature, of: 0} of node-regression. freshet-trainer models TASK "
        "lists them.",
    )
    strategy: str = Field(
        "sequential",
        description="How ranks share the work. Event models: sequential on one rank, pac on several; snapshot models: vertex, "
        "whole, snapshot, group or hybrid. auto: the one with the least predicted seconds, by what is measured here.",
    )
    strategy_params: dict[str, Any] = Field(
        default_factory=dict,
        description="The strategy's own parameters. freshet-trainer models STRATEGY lists them.",
    )
    history_moment: Literal["batch", "event"] = Field(
        "batch",
        description="Past encounters that predictions and baselines know: those before the batch of 200 events, or all that "
        "are strictly before the event itself. Memory and neighbours are always as of the batch.",
    )
    window: int = Field(
        4,
        ge=1,
        le=1000,
        description="w: snapshots that a snapshot model looks back; event models have a memory of their own.",
    )
    horizon: int | None = Field(
        None,
        ge=1,
        description="H: snapshots of a pass, at least the window, for strategies that hold whole snapshots, such as whole. "
        "null: the window; under group: four windows.",
    )
    smoothing: Smoothing = Field(default_factory=Smoothing)
    checkpoint: str = Field(
        "./checkpoints", description="Folder of checkpoints, on a disk. Only rank 0 writes and needs it."
    )
    checkpoint_every: int | None = Field(
        None,
        ge=1,
        description="Snapshots between checkpoints; null: as many checkpoints as take a twentieth of the time at most.",
    )
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints kept.")
    optimisation: Optimisation = Field(default_factory=Optimisation)
    lag: Lag = Field(default_factory=Lag)
    overload: Literal["train-all", "skip-to-latest", "subsample"] = Field(
        "train-all",
        description="When snapshots arrive faster than they are learned: learn all, with growing lag; skip to the latest "
        "beyond the lag; or learn a sample of batches, smaller with growing lag, which bounds the lag. Events that are not "
        "learned still reach graph and memory.",
    )
    scoring: Scoring = Field(default_factory=Scoring)
    serve: Serve | None = Field(
        None, description="score: answers to questions over HTTP, such as {port: 9120}; null: none."
    )
    drift: Drift = Field(default_factory=Drift)
    budget: Budget = Field(default_factory=Budget)
    edge_life: int | None = Field(
        None, ge=1, description="evaluate: life of an edge in intervals; null: until it is deleted."
    )
    interval_s: float | None = Field(
        None,
        gt=0,
        description="evaluate: snapshot length; null: a hundredth of the file's span without stray times.",
    )
    exports: Exports = Field(default_factory=Exports)
    tracker: str | None = Field(
        None, description="run: the experiment tracker that gets scores and checkpoints: mlflow. null: none."
    )
    tracker_params: dict[str, Any] = Field(
        default_factory=dict,
        description="The tracker's own parameters, such as {uri: http://127.0.0.1:5000}. freshet-trainer models TRACKER lists "
        "them.",
    )
    seed: int = Field(0, ge=0, le=10**18, description="Seed of weights, sampling and negatives.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: CUDA if each rank has a device of its own, else the CPU."
    )
    compile: bool = Field(
        False,
        description="Compile training steps of event models by torch.compile at the start, which takes minutes: a GPU then "
        "starts fewer kernels per step. Needs a C++ compiler. On the CPU it gains little.",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="Threads of each rank's products on the CPU. null: the environment variable OMP_NUM_THREADS, or without it "
        "one for event models, and for snapshot models the rank's share of the cores.",
    )
    metrics: RankEndpoints = Field(default_factory=RankEndpoints)

    @field_validator("checkpoint")
    @classmethod
    def _checkpoint_is_a_folder(cls, checkpoint: str) -> str:
        if "://" in checkpoint:
            raise ValueError(
                f"checkpoints lie in a folder, found an address with {checkpoint.partition('://')[0]}://. Name a folder on a "
                "disk that outlives the process"
            )
        return checkpoint

    @model_validator(mode="after")
    def _horizon_has_the_window(self) -> Self:
        if self.horizon is not None and self.horizon < self.window:
            raise ValueError(
                f"key horizon: {self.horizon} snapshots are fewer than the window of {self.window}. Set horizon to at "
                "least window, or leave it out"
            )
        return self
