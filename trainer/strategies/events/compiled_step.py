"""The key ``compile``: what a training step computes of looked-up tensors, by ``torch.compile``."""

import time
from typing import Any

import numpy as np
import structlog
import torch

from schemas.errors import one_line
from stream.service.failure import Failure
from stream.service.heartbeat import beat
from stream.store.log.event_columns import EventColumns
from trainer.data.event_feed import EventFeed
from trainer.data.examples import Queries
from trainer.data.history import Encounter
from trainer.models.event_model import EventModel
from trainer.models.tgn import MemoryModel
from trainer.strategies.events.event_cursor import looked
from trainer.strategies.events.event_stream import EventStream
from trainer.strategies.events.memory_stream import MemoryStream

log = structlog.get_logger()

_FEWEST = 32
"""Events of the made-up batch: torch compiles other code for sizes 0 and 1."""
_VERSIONS = 64
"""Compiled versions of one method in this process: one per model, type and width. torch's own limit is 8."""


class _Compiled:
    """A method of a model by compiled code. Inputs that none fits, such as those of predictions, run it as it is."""

    def __init__(self, model: EventModel, method: str) -> None:
        self._model = model  # a copy of the model has a copy of this, which then leads to the copy
        # sizes differ in every batch
        self._call = torch.compile(getattr(type(model), method), dynamic=True, fullgraph=True)
        self.stance = "default"

    def __call__(self, given: Any) -> Any:
        with torch.compiler.set_stance(self.stance):
            return self._call(self._model, given)  # type: ignore[no-untyped-call]  # torch's


def compile_step(model: EventModel, device: torch.device, edge_features: int, batch: int) -> None:
    """Compile the dense methods of a model in place, by learning from made-up events; later nothing is compiled.

    Each is compiled once with its gradient, and once without if a step delivers mails with it. Weights and torch's
    generators stay as they are.

    Args:
        model: On its device, with the type of its products.
        device: The model's.
        edge_features: Width of an edge's features.
        batch: Events per step, from which code for a GPU is chosen.

    Raises:
        Failure: torch cannot compile it, or not here.
    """
    from torch._dynamo import config as tracing  # loading it takes seconds
    from torch.fx.experimental import _config as shapes

    began = time.perf_counter()
    parts = [_Compiled(model, method) for method in model.dense]
    for method, part in zip(model.dense, parts, strict=True):
        setattr(model, method, part)
    # equal sizes of two made-up inputs are no rule for later ones
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        tracing.patch(recompile_limit=_VERSIONS),
        shapes.patch(use_duck_shape=False),  # type: ignore[attr-defined]  # torch adds it
    ):
        try:
            _learn_made_up(model, device, edge_features, max(batch, _FEWEST))
        except Exception as error:
            reason = one_line(error).split(" Set TORCHDYNAMO_VERBOSE")[0][
                :300
            ]  # without hints for torch's developers
            raise Failure(
                f"key compile: torch cannot compile a training step of {model.name}: {reason}. "
                "Leave the key out, or install a C++ compiler if it is missing"
            ) from error
    for part in parts:
        part.stance = "eager_on_recompile"
    model.zero_grad()
    model.eval()
    log.info("compiled", model=model.name, seconds=round(time.perf_counter() - began, 1))


def _learn_made_up(model: EventModel, device: torch.device, edge_features: int, batch: int) -> None:
    """The gradient of one batch, after two whose mails are delivered, if there are any."""
    draw, count, nodes = np.random.default_rng(0), 3 * batch, 2 * batch
    src, dst = draw.integers(0, batch, count), draw.integers(batch, nodes, count)
    t = np.arange(count) * 1_000_000
    feed = EventFeed(edge_features)
    feed.append(
        EventColumns(
            op=np.ones(count, np.int8), src=src, dst=dst, t=t, visible_t=t, late=np.zeros(count, np.bool_),
            weight=np.zeros(count, np.float32), label=np.zeros(count, np.int32), has_label=np.zeros(count, np.bool_),
            features=np.zeros((count, edge_features), np.float32),
        ),
        nodes,
    )  # fmt: skip
    if isinstance(model, MemoryModel):
        stream: EventStream = MemoryStream(model, feed, device, group=batch)
    else:
        stream = EventStream(model, feed, device)
    last = slice(2 * batch, count)
    before = np.full(batch, t[last.start])
    encounters = np.zeros((batch, len(Encounter)), np.float32)
    queries = [
        Queries(np.arange(batch), src[last], ends, encounters, t[last], before)
        for ends in (dst[last], draw.permutation(dst[last]))
    ]
    beat()
    model.train()
    stream.deliver_before(int(t[last.start]), batch)
    model.train()  # as in a step: mails with embeddings are made in evaluation mode
    question = looked(stream, Queries.join(queries), slice(0, 2 * batch), int(t[last.start]))
    beat()
    model.answer(question).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    beat()
