"""``link-prediction``: pairs that meet next against pairs that do not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.examples import (
    Examples,
    Purpose,
    Queries,
    Sampling,
    insert_events,
    prepare,
    spread,
)
from freshet_graph.trainer.data.history import History, Moment
from freshet_graph.trainer.data.negatives import Draw, Negatives
from freshet_graph.trainer.data.views import EventsView
from freshet_graph.trainer.models.interface import MODELS, Head, Kind, Model
from freshet_graph.trainer.models.link_decoder import LinearDecoder, LinkDecoder
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.predictions import Predictions, join, scored_queries, side_by_side
from freshet_graph.trainer.tasks.interface import (
    TASKS,
    QueryAnswering,
    Reduction,
    Shares,
    Subject,
    learns_all,
)

RANKED_OF = 20
"""One in so many sampled events is ranked: its candidates cost as much as fifty events."""


class Splits(Protocol):
    """The examples of an evaluation, whose negatives and known nodes follow from its split.

    Attributes:
        test_span_s: Memory of EdgeBank with a window, seconds.
        seed: Of draws.
    """

    test_span_s: float
    seed: int

    def history(self, moment: Moment, kind: Kind) -> History:
        """The empty history before the first event, for a model of a kind."""
        ...

    def examples(self, view: EventsView, strategy: Shares, history: History, epoch: int) -> Examples:
        """Examples of a view's newest snapshot."""
        ...


class Links(Section):
    """Options of ``link-prediction``."""

    sample: float = Field(
        1.0,
        gt=0,
        le=1,
        description="θ, share of a snapshot's events that are learned, drawn evenly over its length; figures are of all. ESDG "
        "has 0.1.",
    )
    decoder: Literal["perceptron", "linear"] = Field(
        "perceptron",
        description="Of snapshot models. perceptron: over the products of both ends' embeddings, these, and encounters; linear: "
        "one layer over both ends' embeddings, as in ESDG.",
    )


@TASKS.register
class LinkPrediction:
    """Events against random destinations; baselines are EdgeBank, Recency, Recency × popularity and random weights.

    Attributes:
        history: All events before the next snapshot.
        known_nodes: Nodes below this number are not new.
    """

    name: ClassVar[str] = "link-prediction"
    Options: ClassVar[type[Section]] = Links
    subject: ClassVar[Subject] = "pairs"
    query_class: ClassVar[type[Any]] = Queries
    sees_labels: ClassVar[bool] = True
    selection_metric: ClassVar[tuple[str, int]] = ("ap", 1)
    baseline: ClassVar[str] = "recency"
    head: Head = LinkDecoder

    def __init__(self, config: TrainerConfig, lane: LaneReader, options: Links) -> None:
        self._config, self._seed, self._share = config, config.seed, options.sample
        if options.decoder == "linear":
            if MODELS.find(config.model).kind == "event":
                raise Failure(
                    f"key task_params: decoder is of snapshot models, and {config.model} has its own. Leave it out"
                )
            self.head = LinearDecoder
        self._sampling = sampling_of(config)
        self.window_s = config.window * lane.header.interval_us / US_PER_S
        """Memory of the baseline EdgeBank with a window, seconds."""
        self._splits: Splits | None = None

    def offline(self, splits: Splits) -> "LinkPrediction":
        """The same task in an evaluation."""
        self._splits, self._seed, self.window_s = splits, splits.seed, splits.test_span_s
        return self

    def rewind(self, model: Model) -> None:
        """See ``Task.rewind``."""
        moment = moment_of(model, self._config)
        self.history = self._splits.history(moment, model.kind) if self._splits else History(moment)
        self.known_nodes = 0

    def examples(self, view: EventsView, strategy: QueryAnswering, *, epoch: int = 0) -> Examples:
        """See ``Task.examples``."""
        if self._splits is not None:
            return self._sampled(self._splits.examples(view, strategy, self.history, epoch))
        known = np.arange(view.num_nodes) < self.known_nodes
        examples = examples_of(view, strategy, self.history, known, self._sampling, epoch)
        self.known_nodes = view.num_nodes
        return self._sampled(examples)

    def _sampled(self, examples: Examples) -> Examples:
        """The same examples with a share of the events to learn, in every epoch the same."""
        if self._share == 1:
            return examples
        draw = Draw(self._seed, examples.sequence, Purpose.SAMPLED_LINKS)
        chosen = np.zeros(examples.items, np.bool_)
        chosen[spread(examples.items, int(np.ceil(self._share * examples.items)), draw)] = True
        learned, training = (one.select(chosen[one.event]) for one in (examples.learned, examples.training))
        return replace(examples, learned=learned, training=training)

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """See ``Task.remember``."""
        self.history.remember(insert_events(events), num_nodes)
        self.known_nodes = num_nodes

    def loss(self, answers: Tensor, truth: Tensor, reduction: Reduction = "sum") -> Tensor:
        """See ``Task.loss``: binary cross-entropy."""
        # of two types torch takes the truth's: a loss in float64 would be computed in float32
        return binary_cross_entropy_with_logits(answers, truth.to(answers.dtype), reduction=reduction)

    def evaluate(
        self,
        strategy: QueryAnswering,
        model: Model,
        untrained: Model | None,
        examples: Examples,
        ranks: Ranks,
    ) -> Any:
        """See ``Task.evaluate``: ``Predictions``."""
        return predict(strategy, model, untrained, examples, ranks, window_s=self.window_s)

    def join(self, parts: Sequence[Any]) -> Any:
        """See ``Task.join``."""
        return join(parts)

    def forgot(self, nodes: int, kept_nodes: Int64 | None = None) -> None:
        """See ``Task.forgot``."""
        self.known_nodes = nodes

    def state(self) -> dict[str, Any]:
        """See ``Stateful.state``."""
        return {"known_nodes": self.known_nodes, "history": self.history.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Stateful.restore``."""
        self.known_nodes = int(state["known_nodes"])
        self.history.restore({name: np.asarray(column) for name, column in state["history"].items()})

    @property
    def memory_bytes(self) -> int:
        """See ``Task.memory_bytes``."""
        return self.history.memory_bytes


def sampling_of(config: TrainerConfig) -> Sampling:
    """The sampling of a continual run."""
    events = config.scoring.sample
    if events == "all":
        return Sampling(config.seed)
    return Sampling(config.seed, events=events, ranked_events=-(-events // RANKED_OF))


def sees_encounters(model: Model) -> bool:
    """Whether a model's head sees when and how often two nodes met."""
    return getattr(model.decoder, "encounters", None) is not None


def moment_of(model: Model, config: TrainerConfig) -> Moment:
    """The moment up to which a model knows the past, at most: that of the baselines beside it.

    Graphs are as of the snapshot, memories as of the batch. A model that sees encounters knows them as of the configured
    moment, and so does one without a memory the neighbours that it looks up.
    """
    if sees_encounters(model) or getattr(model, "sees_by_event", False):
        return config.history_moment
    return "snapshot" if model.kind == "snapshot" else "batch"


def examples_of(
    view: EventsView,
    strategy: Shares,
    history: History,
    known: NDArray[np.bool_],
    sampling: Sampling,
    epoch: int,
    stored: Negatives | None = None,
) -> Examples:
    """``prepare`` the newest snapshot of a view."""
    tau, events = view.taus[-1], view.events(view.taus[-1])
    return prepare(
        tau,
        events,
        history,
        sequence=view.sequence,
        num_nodes=view.num_nodes,
        known=known,
        owned=strategy.owned(view.num_nodes),
        sampling=sampling,
        epoch=epoch,
        share=strategy.share(tau, insert_events(events)),
        stored=stored,
        learns_all=learns_all(strategy),
    )


def predict(
    strategy: QueryAnswering,
    model: Model,
    untrained: Model | None,
    examples: Examples,
    ranks: Ranks,
    *,
    window_s: float = np.inf,
) -> Predictions | None:
    """Predict a snapshot's events before they are learned; a collective.

    Late events are left out: the time of their appearance is not that of the stream.

    Args:
        strategy: Knows the snapshots before.
        model: The model.
        untrained: The same model with random weights; None: only AP and AUC of the model are wanted, and its column is zeros.
        examples: This rank's.
        ranks: All ranks.
        window_s: Memory of the baseline that remembers pairs for a time, seconds.

    Returns:
        On rank 0 the predictions of all ranks, elsewhere None.
    """
    examples = examples.only_random() if untrained is None else examples
    queries = scored_queries(examples)
    logits = strategy.answer(model, queries)
    of_untrained = [np.full_like(known, np.nan if untrained else 0) for known in logits]
    if untrained is not None:
        in_sample = examples.in_sample
        costly = [in_sample[one.event] for one in queries]
        few = [one.select(here) for one, here in zip(queries, costly, strict=True)]
        for column, here, answers in zip(of_untrained, costly, strategy.answer(untrained, few), strict=True):
            column[here] = answers
    return side_by_side(examples, queries, logits, of_untrained, ranks, window_s)
