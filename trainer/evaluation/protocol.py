"""The offline protocol: the events, their negatives, and the knowledge before each event."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from schemas.events import US_PER_S
from schemas.trainer_config import TrainerConfig
from stream.arrays.kinds import Bool
from stream.store.lane.reader import LaneReader
from trainer.data.examples import Examples, Sampling
from trainer.data.history import History, Inserts, Moment
from trainer.data.views import EventsView
from trainer.data.windows import LogWindow
from trainer.evaluation.split import Split
from trainer.evaluation.stored_negatives import StoredNegatives
from trainer.tasks.interface import Answers, Reduction, Shares
from trainer.tasks.link_prediction import LinkPrediction, examples_of

RANKED = 2000
"""Test events that are ranked among candidates, about equally many per snapshot: each costs 50 predictions."""


class OfflineProtocol:
    """One repetition of an evaluation over the events of a lane.

    Args:
        lane: Of the store of the evaluation.
        inserts: All of its insert events, in log order.
        split: By time.
        seed: Of the negatives.
        stored: Negatives for figures; None: they are drawn.
        moment: See ``History``.

    Attributes:
        split: By time.
        test_span_s: Memory of EdgeBank with a window: the length of the test, as its authors have it.
    """

    def __init__(
        self,
        lane: LaneReader,
        inserts: Inserts,
        split: Split,
        seed: int,
        stored: StoredNegatives | None = None,
        moment: Moment = "batch",
    ) -> None:
        self.split = split
        self._moment: Moment = moment
        self._lane, self._stored = lane, stored
        trained = split.train(inserts.visible_us)
        tested = np.unique(inserts.visible_us[split.test(inserts.visible_us)] // lane.header.interval_us)
        self.test_span_s = (int(inserts.visible_us.max()) - split.validate_until_us) / US_PER_S
        self._sampling = Sampling(
            seed,
            ranked_events=-(-RANKED // len(tested)),
            pool=np.unique(inserts.dst),
            training_pool=np.unique(inserts.dst[trained]),
        )
        self._trained_nodes = np.unique(np.concatenate([inserts.src[trained], inserts.dst[trained]]))

    def history(self) -> History:
        """The empty history before the first event."""
        return History(self._moment, across=True)

    def examples(self, view: EventsView, strategy: Shares, history: History, epoch: int) -> Examples:
        """Examples of a view's newest snapshot."""
        known = np.isin(np.arange(view.num_nodes), self._trained_nodes)
        stored = self._stored.of(view.taus[-1]) if self._stored is not None else None
        return examples_of(view, strategy, history, known, self._sampling, epoch, stored)

    def every_snapshot(self) -> Iterator[Examples]:
        """Examples of all snapshots and all events, without learning."""
        history, view = self.history(), LogWindow(self._lane)
        for manifest in self._lane.manifests:
            view.advance(manifest)
            yield self.examples(view, _Everything(), history, 0)


class OfflineLinks(LinkPrediction):
    """Link prediction by the offline protocol, with the loss, head and use of labels of the configured task ``of``.

    Its negatives and known nodes are those of the protocol's split.
    """

    def __init__(
        self, config: TrainerConfig, lane: LaneReader, protocol: OfflineProtocol, of: type[LinkPrediction]
    ) -> None:
        self._protocol, self._configured = protocol, of(config, lane)
        self.sees_labels, self.head = of.sees_labels, of.head  # type: ignore[misc]  # of this one
        super().__init__(config, lane)
        self.window_s = protocol.test_span_s

    def rewind(self) -> None:
        """See ``Task.rewind``."""
        self.history = self._protocol.history()
        self.known_nodes = 0

    def loss(self, answers: Tensor, truth: Tensor, reduction: Reduction = "sum") -> Tensor:
        """See ``Task.loss``."""
        return self._configured.loss(answers, truth, reduction)

    def lesson(self, view: EventsView, strategy: Answers, *, epoch: int = 0) -> Examples:
        """See ``Task.lesson``."""
        return self._protocol.examples(view, strategy, self.history, epoch)


class _Everything:
    """Owns every node: without learning there is one rank."""

    def owned(self, num_nodes: int) -> Bool:
        return np.ones(num_nodes, np.bool_)

    def share(self, tau: int, inserts: Inserts) -> None:
        return None
