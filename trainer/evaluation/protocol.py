"""The offline protocol, whatever is judged by it: which events, which negatives, what is known before each."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from schemas.events import US_PER_S
from stream.store.lane.reader import LaneReader
from stream.store.log.event_columns import EventColumns, event_columns
from trainer.data.examples import Examples, Lesson, Sampling, prepare
from trainer.data.history import History, Inserts, Moment
from trainer.data.split import Split
from trainer.data.stored_negatives import StoredNegatives

Int64 = NDArray[np.int64]

RANKED = 2000
"""Test events that are ranked among candidates, about as many in every snapshot: each costs 50 predictions."""


class OfflineProtocol:
    """How one repetition of an evaluation goes along the events of a lane.

    Args:
        lane: Of the store that was made of the data.
        inserts: All of its insert events, in log order.
        split: By time.
        seed: Of the negatives.
        stored: Negatives to be judged by; None: they are drawn.
        moment: As of which moment the history is known, see ``History``.

    Attributes:
        split: By time.
        test_span_s: How long EdgeBank with a window remembers: as long as the test, as its authors have it.
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
        """What is known before the first event: nothing."""
        return History(self._moment, across=True)

    def examples(
        self,
        tau: int,
        events: EventColumns,
        history: History,
        *,
        num_nodes: int,
        owned: NDArray[np.bool_],
        epoch: int,
        lesson: Lesson | None,
    ) -> Examples:
        """``prepare`` a snapshot."""
        return prepare(
            tau,
            events,
            history,
            num_nodes=num_nodes,
            known=np.isin(np.arange(num_nodes), self._trained_nodes),
            owned=owned,
            sampling=self._sampling,
            epoch=epoch,
            lesson=lesson,
            stored=self._stored.of(tau) if self._stored is not None else None,
        )

    def every_snapshot(self) -> Iterator[Examples]:
        """Examples of all snapshots and all events, where nothing is learned."""
        history = self.history()
        for manifest in self._lane.manifests:
            header = self._lane.header
            events = event_columns(
                self._lane.log.events(manifest.tau), manifest.tau, header.interval_us, header.edge_features
            )
            owned = np.ones(manifest.num_nodes, np.bool_)
            yield self.examples(
                manifest.tau,
                events,
                history,
                num_nodes=manifest.num_nodes,
                owned=owned,
                epoch=0,
                lesson=None,
            )
