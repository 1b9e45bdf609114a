"""Several ranks beside one: losses, gradients, weights, predictions and embeddings must be equal."""

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trainer_sessions import examples_of, learn, session_on, small_params

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.interface import MODELS, ModelShape, create_model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.interface import STRATEGIES

EVERYTHING = 1 << 20
"""A batch that no snapshot fills: how many ranks there are does not decide then what a step learns from."""
STILL = 1e-30
"""A learning rate that leaves weights as they are."""
PRECISE = {torch.float64: 1e-10, torch.float32: 1e-5}
DRAWING = threading.Lock()
"""Threads share torch's generator."""


def pairs(kind: str) -> list[tuple[str, str]]:
    """Strategies that run on several ranks, each with every model of the kind that it trains."""
    made = {
        model: create_model(model, ModelShape(0, 2), small_params(model)) for model in sorted(MODELS.all())
    }
    return [
        (name, model)
        for name, strategy in sorted(STRATEGIES.all().items())
        for model, each in made.items()
        if each.kind == strategy.trains == kind and strategy.refuses(each, None, 4) is None
    ]


def begun(
    lane: LaneReader, strategy: str, model: str, ranks: Ranks, dtype: torch.dtype, rate: float, **more: Any
) -> Session:
    """One rank's session, computing in a type, without dropout."""
    optimisation = Optimisation(batch_size=EVERYTHING, learning_rate=rate)
    with DRAWING:
        session = session_on(lane, strategy, model, ranks, optimisation, **{"window": 3, **more})
    for each in (session.model, session.untrained):
        each.to(dtype)
        for module in each.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if hasattr(each, "encode"):
            each.encode = _in(dtype, each.encode)
    session.strategy.rewind()  # memory is of the weights' precision
    return session


def _in(dtype: torch.dtype, encode: Any) -> Any:
    return lambda inputs: encode(inputs).to(dtype)


def learned(session: Session) -> dict[str, Any]:
    """By snapshot what is predicted, then learned, and what comes of it; the same on any number of ranks."""
    found: dict[str, Any] = {}
    for manifest in session.lane.manifests:
        found |= predicted(
            session, manifest.sequence, found_examples := examples_of(session, manifest.sequence)
        )
        report = learn(session, found_examples)
        found[f"{manifest.tau} events"] = torch.tensor(report.events)
        found[f"{manifest.tau} loss"] = torch.tensor(np.nan if report.loss is None else report.loss).double()
        for name, weight in session.model.named_parameters():
            found[f"{manifest.tau} weight {name}"] = weight.detach().clone()
            if weight.grad is not None:
                found[f"{manifest.tau} gradient {name}"] = weight.grad.clone()
    return found


def predicted(session: Session, sequence: int, examples: Any) -> dict[str, Tensor]:
    """Rank 0's scores of a snapshot, and embeddings of all nodes after it."""
    judged = session.task.evaluate(
        session.strategy, session.model, session.untrained, examples, session.ranks
    )
    nodes = session.strategy.embeddings(np.arange(len(session.names)))
    found = {f"{sequence} embeddings": nodes.detach().clone()}
    if judged is not None and session.ranks.rank == 0:
        # scores, for a rank of two nearly equal ones hangs by rounding, and figures where there are no scores
        scored = [name for name in ("positive", "negative", "scores") if hasattr(judged, name)]
        told = {name: getattr(judged, name) for name in scored} or judged.figures()
        for key, value in told.items():
            found[f"{sequence} figure {key}"] = torch.as_tensor(value).double()
    return found


def require_equal(ours: dict[str, Any], one: dict[str, Any], dtype: torch.dtype) -> None:
    """Fail unless both have the same numbers, as precisely as the type allows, in units of the largest of each tensor.

    Gradients are in units of the largest of a snapshot's: terms that cancel out leave the rounding of what they were.
    Scores are told in float32 whatever the model computes in.
    """
    figures = {key for key in one if " figure " in key}
    assert ours.keys() | figures == one.keys(), sorted(ours.keys() ^ one.keys())
    largest: dict[str, float] = {}
    for key, value in one.items():
        unit = _unit(key)
        largest[unit] = max(largest.get(unit, 0.0), _largest(value))
    for key, value in one.items():
        if key in ours:
            precise = max(PRECISE[dtype], 1e-6) if key in figures else PRECISE[dtype]
            atol = precise * max(largest[_unit(key)], 1e-3)
            if ours[key].shape == value.shape and torch.allclose(
                ours[key], value, rtol=0, atol=atol, equal_nan=True
            ):
                continue
            torch.testing.assert_close(  # says where and by how much, and takes ten times as long
                ours[key],
                value,
                rtol=0,
                atol=atol,
                equal_nan=True,
                msg=lambda text, key=key: f"{key}: {text}",
            )


def _unit(key: str) -> str:
    """What a number is measured with: all gradients of a snapshot, else its own tensor."""
    return key.split(" gradient ", maxsplit=1)[0] if " gradient " in key else key


def _largest(value: Tensor) -> float:
    finite = value[torch.isfinite(value)].abs()
    return finite.max().item() if len(finite) else 1.0
