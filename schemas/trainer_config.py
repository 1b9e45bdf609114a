"""Configuration of the trainer service: one YAML file, checked key by key, environment variables over it."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from schemas.config import Metrics, Name, Service
from schemas.section import Section
from schemas.store_address import Store


class Replay(Section):
    """Old events learned again beside the new ones, by the strategy sequential."""

    ratio: float = Field(
        0.0, ge=0, le=10, description="Old events for each new one that is learned; 0: none."
    )
    batches: int = Field(64, ge=1, description="Old batches kept, about 2 KiB an event.")
    sample: Literal["reservoir", "time"] = Field(
        "reservoir",
        description="Which: each of the past equally likely, or each stretch of its time equally.",
    )


class Optimisation(Section):
    """How a snapshot is learned."""

    epochs: int | None = Field(
        None,
        ge=1,
        description="Passes over a new snapshot's events; evaluate: passes over the training split. null: 2; event models "
        "under run: at twice the rate unless learning_rate names one, and 1 once 10,000 events are learned.",
    )
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        256,
        description="Events a step; vertex: of every rank; pac: of all, or as its batch says; whole: at least so many. auto, "
        "event models under run: 256 up to 3,000 events a second, twice as many for each time that arrive twice as fast, "
        "1,024 at most; evaluate: 256.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Of Adam; null: 0.001, under whole, group and hybrid, whose steps are few and large, 0.005.",
    )
    rate: Literal["constant", "decay", "on-drift"] = Field(
        "constant",
        description="Learning rate after the warm-up: constant; falling with the root of the steps; the same, and again "
        "from the warm-up on when the model predicts worse (key drift).",
    )
    warm_up_steps: int = Field(0, ge=0, description="Steps over which the rate rises from 0.")
    decay_steps: int = Field(
        10_000, ge=1, description="Under decay and on-drift the rate is half after three times as many steps."
    )
    weight_decay: float = Field(0.0, ge=0, description="Of Adam.")
    replay: Replay = Field(default_factory=Replay)
    grad_clip: float | None = Field(1.0, gt=0, description="Largest gradient norm; null: no clipping.")
    max_nonfinite: int = Field(
        3,
        ge=1,
        description="Snapshots in a row without a finite step after which training ends with an error.",
    )

    @property
    def batch(self) -> int:
        """``batch_size``, or what auto begins with."""
        return 256 if self.batch_size == "auto" else self.batch_size

    @property
    def passes(self) -> int:
        """``epochs``, or what null stands for."""
        return 2 if self.epochs is None else self.epochs


class Classifier(Section):
    """Task node-classification: the perceptron that learns labels from embeddings."""

    epochs: int = Field(
        30, ge=1, description="Passes over the labelled training events; `run`: over those of a snapshot."
    )
    batch_size: int = Field(200, ge=1, description="Labelled events a step.")
    learning_rate: float = Field(3e-4, gt=0, description="Of Adam.")


class Target(Section):
    """Task node-regression: the number that is asked for of each node, after the next snapshot."""

    next: Literal["in_degree", "feature"] = Field(
        "in_degree",
        description="in_degree: log(1 + live pairs that lead to the node); feature: one of its features.",
    )
    of: int | None = Field(None, ge=0, description="With feature: which, counted from 0.")

    @model_validator(mode="after")
    def _names_a_feature(self) -> Self:
        if self.next == "feature" and self.of is None:
            raise ValueError("next: feature needs the feature's number. Give it in the key of")
        if self.next != "feature" and self.of is not None:
            raise ValueError("of is the number of a feature. Leave it out, or set next: feature")
        return self


class Smoothing(Section):
    """The past that a snapshot shows beside its own interval's events; without smoothing it is the live graph."""

    kind: Literal["none", "edge-life", "m-product"] = Field(
        "none",
        description="edge-life: the sum of the raw events of the last intervals, so that a pair has its number of events "
        "(or the sum of their weights) as its value; m-product: the mean of the last raw snapshots and of their nodes' "
        "inputs.",
    )
    length: int = Field(
        1, ge=1, description="edge-life: intervals; m-product: snapshots, or all there were so far."
    )

    @model_validator(mode="after")
    def _is_of_a_kind(self) -> Self:
        if self.kind == "none" and self.length > 1:
            raise ValueError("length goes with kind: edge-life or kind: m-product only")
        return self


class Lag(Section):
    """What happens when the stream runs ahead of training."""

    max_snapshots: int = Field(8, ge=1, description="Behind by more than this is lag.")


class Hold(Section):
    """When exports are held back: what was touched meanwhile is exported with the next one that is let out."""

    below_recency: bool = Field(
        False,
        description="While the model's AP on the newest snapshot is below that of Recency; node-regression: its MSE above "
        "that of age-aware persistence.",
    )
    ap_drop: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="While the AP is lower (node-regression: the MSE higher) by more than this than its mean over the "
        "last snapshots let out, such as 0.05; null: never.",
    )
    over: int = Field(
        10,
        ge=1,
        description="How many snapshots let out that mean is over, each weighted by its events; until there were so many, "
        "nothing is a drop.",
    )


class Exports(Section):
    """What each snapshot leaves under exports/ in the store, for others to read or for freshet-stream to publish."""

    embeddings: bool = Field(False, description="Embeddings of the nodes that it touched.")
    scores: bool = Field(False, description="The predictions of its events, made before they were learned.")
    name: Name | None = Field(None, description="Folder under exports/; null: the lane's name.")
    keep: int | None = Field(
        None,
        ge=1,
        description="Newest exports kept, and those that a topic is still to get; null: all.",
    )
    hold: Hold = Field(default_factory=Hold)


class Scoring(Section):
    """What of a new snapshot is predicted for the sake of figures alone; the model predicts every event anyway."""

    sample: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        200,
        description="Events of a snapshot, drawn evenly over its length, that random weights predict and that historical "
        "negatives are drawn for; a twentieth of them are ranked among candidates. all: every event, 200 ranked; so is "
        "evaluate.",
    )


class Drift(Section):
    """When the model's predictions are seen to have become worse: over a sliding window, against the one before."""

    window_events: int = Field(2_000, ge=1, description="Predicted events of the window, whole snapshots.")
    reference_events: int = Field(10_000, ge=1, description="Predicted events before the window.")
    threshold: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="A drop of the mean AP (node-regression: a rise of the MSE) by more is a drift.",
    )


class Budget(Section):
    """What event models remember of a stream at most; what was unseen for longest is forgotten, and counted."""

    nodes: int | None = Field(
        None,
        ge=1,
        description="Nodes with a state; those of the newest snapshot stay in any case. null: all that ever came.",
    )
    events: int | None = Field(
        None,
        ge=1,
        description="Events that neighbours are sampled from, and with them pairs; null: all that ever came.",
    )


class RankEndpoints(Metrics):
    """Where each rank serves its metrics and health endpoints."""

    port: int = Field(
        9109, ge=0, le=65535, description="Port of rank 0, rank r takes port + r; 0: any free ones."
    )


class TrainerConfig(Service):
    """Configuration of freshet-trainer."""

    model_config = SettingsConfigDict(
        env_prefix="FRESHET_TRAINER_",
        env_nested_delimiter="__",
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    store: Store | None = Field(
        None, description="Folder of the store, or its address: s3://bucket/prefix; evaluate needs none."
    )
    lane: Name = Field(
        "distdy", description="Lane to train on; evaluate: the algorithm that partitions the file."
    )
    parts: int | None = Field(None, ge=1, description="evaluate: parts of the partition; null: one a rank.")
    lane_params: dict[str, Any] = Field(
        default_factory=dict, description="evaluate: the partitioner's own parameters, such as {hubs: 0.05}."
    )
    model: str = Field(
        "sage-linear",
        description="A model: freshet-trainer models lists them; event models, such as tgn-history, need sequential or pac.",
    )
    model_params: dict[str, Any] = Field(
        default_factory=dict, description="The model's own parameters, such as {hidden: 64}."
    )
    task: str = Field(
        "link-prediction",
        description="What is learned and judged: link-prediction; node-classification, of events with labels 0 and 1; "
        "node-regression, with a snapshot model.",
    )
    target: Target | None = Field(
        None, description="Task node-regression: what is asked for; null: the in-degree."
    )
    classifier: Classifier = Field(default_factory=Classifier)
    strategy: str = Field(
        "vertex",
        description="How ranks share the work: vertex; event models: sequential on one rank, pac on several.",
    )
    strategy_params: dict[str, Any] = Field(
        default_factory=dict, description="The strategy's own parameters."
    )
    history_moment: Literal["batch", "event"] = Field(
        "batch",
        description="What predictions, and the floors beside them, know of when and how often nodes and pairs met: what "
        "was before the batch of 200 events, or all that was strictly before the event itself. Memory and neighbours are "
        "as of the batch either way.",
    )
    window: int = Field(
        4,
        ge=1,
        le=1000,
        description="w: snapshots a snapshot model looks back; event models remember by themselves.",
    )
    horizon: int | None = Field(
        None,
        ge=1,
        description="H: snapshots that a strategy which holds whole snapshots (whole) passes over, at least the window; "
        "null: the window; group: four windows.",
    )
    smoothing: Smoothing = Field(default_factory=Smoothing)
    checkpoint: str = Field("./checkpoints", description="Folder of checkpoints.")
    checkpoint_every: int | None = Field(
        None,
        ge=1,
        description="Snapshots between checkpoints; null: one as soon as all of them take a twentieth of the time at most.",
    )
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints kept.")
    optimisation: Optimisation = Field(default_factory=Optimisation)
    lag: Lag = Field(default_factory=Lag)
    overload: Literal["train-all", "skip-to-latest", "subsample"] = Field(
        "train-all",
        description="When snapshots arrive faster than they are learned: learn all, later and later; beyond the lag go to "
        "the latest; or learn a sample of batches, fewer the further behind, so that nothing falls behind for ever. What "
        "is not learned reaches graph and memory all the same.",
    )
    scoring: Scoring = Field(default_factory=Scoring)
    drift: Drift = Field(default_factory=Drift)
    budget: Budget = Field(default_factory=Budget)
    edge_life: int | None = Field(
        None, ge=1, description="evaluate: intervals an edge lives; null: until deleted."
    )
    interval_s: float | None = Field(
        None,
        gt=0,
        description="evaluate: snapshot length; null: a hundredth of the file's span, stray times left out.",
    )
    exports: Exports = Field(default_factory=Exports)
    seed: int = Field(0, ge=0, le=10**18, description="Seed of weights, sampling and negatives.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: CUDA where each rank has a device of its own, else the CPU."
    )
    metrics: RankEndpoints = Field(default_factory=RankEndpoints)

    @model_validator(mode="after")
    def _horizon_has_the_window(self) -> Self:
        if self.horizon is not None and self.horizon < self.window:
            raise ValueError(
                f"key horizon: {self.horizon} snapshots are fewer than the window of {self.window}. Set horizon to at "
                "least window, or leave it out"
            )
        return self
