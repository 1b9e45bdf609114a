"""``jodie``, ``dyrep``, ``tgn``, ``tige`` and ``tgn-history``: the memory architecture's presets."""

from typing import ClassVar

from trainer.models.interface import ModelShape, register
from trainer.models.memory.model import MemoryModel


@register
class Jodie(MemoryModel):
    """JODIE (Kumar et al. 2019): a recurrent cell a node, embeddings projected in time."""

    name: ClassVar[str] = "jodie"

    def __init__(
        self,
        shape: ModelShape,
        *,
        memory: int = 100,
        time_width: int = 100,
        time: str = "cosine",
        aggregator: str = "last",
        moment: str = "event",
        roles: bool = False,
        history: bool = False,
        walks: bool = False,
    ) -> None:
        super().__init__(
            shape, memory=memory, time_width=time_width, time=time, message="memory", own=False,
            aggregator=aggregator, updater="rnn", embedding="projection", neighbours=1, how="recent", layers=1,
            heads=1, dropout=0.0, moment=moment, roles=roles, history=history, walks=walks,
        )  # fmt: skip


@register
class DyRep(MemoryModel):
    """DyRep (Trivedi et al. 2019): messages carry the other end's neighbourhood into a recurrent cell."""

    name: ClassVar[str] = "dyrep"

    def __init__(
        self,
        shape: ModelShape,
        *,
        memory: int = 100,
        time_width: int = 100,
        time: str = "cosine",
        aggregator: str = "last",
        neighbours: int = 10,
        how: str = "recent",
        moment: str = "event",
        roles: bool = False,
        history: bool = False,
        walks: bool = False,
    ) -> None:
        super().__init__(
            shape, memory=memory, time_width=time_width, time=time, message="neighbourhood", own=False,
            aggregator=aggregator, updater="rnn", embedding="identity", neighbours=neighbours, how=how,  # type: ignore[arg-type]  # checked there
            layers=1, heads=1, dropout=0.0, moment=moment, roles=roles, history=history, walks=walks,
        )  # fmt: skip


@register
class Tgn(MemoryModel):
    """TGN (Rossi et al. 2020): a gated cell a node, embeddings by attention over recent neighbours."""

    name: ClassVar[str] = "tgn"

    def __init__(
        self,
        shape: ModelShape,
        *,
        memory: int = 100,
        time_width: int = 100,
        time: str = "cosine",
        aggregator: str = "last",
        neighbours: int = 10,
        how: str = "recent",
        layers: int = 1,
        heads: int = 2,
        dropout: float = 0.1,
        moment: str = "event",
        roles: bool = False,
        history: bool = False,
        walks: bool = False,
    ) -> None:
        super().__init__(
            shape, memory=memory, time_width=time_width, time=time, message="memory", own=True,
            aggregator=aggregator, updater="gru", embedding="attention", neighbours=neighbours, how=how,  # type: ignore[arg-type]  # checked there
            layers=layers, heads=heads, dropout=dropout, moment=moment, roles=roles, history=history, walks=walks,
        )  # fmt: skip


@register
class Tige(MemoryModel):
    """TIGE (Zhang et al. 2023): two memories, states just before events are the embeddings and make the messages."""

    name: ClassVar[str] = "tige"

    def __init__(
        self,
        shape: ModelShape,
        *,
        memory: int = 100,
        time_width: int = 100,
        time: str = "cosine",
        aggregator: str = "last",
        neighbours: int = 10,
        how: str = "recent",
        layers: int = 1,
        heads: int = 2,
        dropout: float = 0.1,
        moment: str = "event",
        roles: bool = False,
        history: bool = False,
        walks: bool = False,
    ) -> None:
        super().__init__(
            shape, memory=memory, time_width=time_width, time=time, message="embedding", own=True,
            aggregator=aggregator, updater="gru", embedding="attention", neighbours=neighbours, how=how,  # type: ignore[arg-type]  # checked there
            layers=layers, heads=heads, dropout=dropout, moment=moment, roles=roles, history=history, walks=walks,
        )  # fmt: skip


@register
class TgnHistory(Tgn):
    """TGN with the pair's history, temporal walks, roles and log-spaced time: the recommended event model."""

    name: ClassVar[str] = "tgn-history"

    def __init__(
        self,
        shape: ModelShape,
        *,
        memory: int = 100,
        time_width: int = 24,
        time: str = "log",
        aggregator: str = "last",
        neighbours: int = 10,
        how: str = "recent",
        layers: int = 1,
        heads: int = 2,
        dropout: float = 0.1,
        moment: str = "batch",
        roles: bool = True,
        history: bool = True,
        walks: bool = True,
    ) -> None:
        super().__init__(
            shape, memory=memory, time_width=time_width, time=time, aggregator=aggregator,
            neighbours=neighbours, how=how, layers=layers, heads=heads, dropout=dropout, moment=moment, roles=roles,
            history=history, walks=walks,
        )  # fmt: skip
