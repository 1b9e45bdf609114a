"""The offline protocol: the events, their negatives, and the knowledge before each event."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.examples import Examples, Sampling
from freshet_graph.trainer.data.history import History, Inserts, Moment
from freshet_graph.trainer.data.negatives import NONE, NegativePool
from freshet_graph.trainer.data.views import EventsView, LogWindow
from freshet_graph.trainer.evaluation.split import Split
from freshet_graph.trainer.evaluation.stored_negatives import StoredNegatives
from freshet_graph.trainer.models.interface import Kind
from freshet_graph.trainer.tasks.interface import Shares
from freshet_graph.trainer.tasks.link_prediction import examples_of

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
        masked: int64, nodes that are hidden from training; None: none.

    Attributes:
        split: By time.
        seed: Of draws.
        no_negative: Training and test events that are left out, because their source meets every destination at their time.
        test_span_s: Memory of EdgeBank with a window: the length of the test, as its authors have it.
    """

    def __init__(
        self,
        lane: LaneReader,
        inserts: Inserts,
        split: Split,
        seed: int,
        stored: StoredNegatives | None = None,
        masked: Int64 | None = None,
    ) -> None:
        self.split, self.seed = split, seed
        self._lane, self._stored, self._masked = lane, stored, masked
        trained, tested = split.train(inserts.visible_us), split.test(inserts.visible_us)
        self._borders = [int(np.count_nonzero(inserts.visible_us <= border)) for border in split.borders]
        snapshots = np.unique(inserts.visible_us[tested] // lane.header.interval_us)
        self.test_span_s = (int(inserts.visible_us.max()) - split.validate_until_us) / US_PER_S
        pool, training_pool = np.unique(inserts.dst), np.unique(inserts.dst[trained])
        self._sampling = Sampling(
            seed, ranked_events=-(-RANKED // len(snapshots)), pool=pool, training_pool=training_pool
        )
        possible = NegativePool(inserts, pool).possible if stored is None else stored.random != NONE
        self.no_negative = {
            "training": int(np.count_nonzero(trained & ~NegativePool(inserts, training_pool).possible)),
            "test": int(np.count_nonzero(tested & ~possible)),
        }
        self._trained_nodes = np.unique(np.concatenate([inserts.src[trained], inserts.dst[trained]]))

    def history(self, moment: Moment, kind: Kind) -> History:
        """The empty history before the first event; validation and test begin with a batch of their own.

        Args:
            moment: Up to which baselines know the past.
            kind: Of the model. A snapshot model knows all earlier snapshots, so its batches end with theirs.
        """
        return History(moment, across=kind == "event", borders=self._borders)

    def examples(self, view: EventsView, strategy: Shares, history: History, epoch: int) -> Examples:
        """Examples of a view's newest snapshot."""
        known = np.isin(np.arange(view.num_nodes), self._trained_nodes)
        stored = self._stored.negatives_of(view.taus[-1]) if self._stored is not None else None
        examples = examples_of(view, strategy, history, known, self._sampling, epoch, stored)
        if self._masked is None:
            return examples
        of_src, of_dst = (
            np.isin(ends, self._masked) for ends in (examples.inserts.src, examples.inserts.dst)
        )
        return replace(examples, masked=of_src | of_dst)

    def every_snapshot(self, moment: Moment = "batch") -> Iterator[Examples]:
        """Examples of all snapshots and all events, as an event model meets them, without learning."""
        history, view = self.history(moment, "event"), LogWindow(self._lane)
        for manifest in self._lane.manifests:
            view.advance(manifest)
            yield self.examples(view, _Everything(), history, 0)


class _Everything:
    """Owns every node: without learning there is one rank."""

    def owned(self, num_nodes: int) -> Bool:
        return np.ones(num_nodes, np.bool_)

    def share(self, tau: int, inserts: Inserts) -> None:
        return None
