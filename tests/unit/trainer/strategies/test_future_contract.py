"""No score, embedding or weight depends on a later event, whichever model, strategy and task, plug-ins included.

Two lanes are equal up to the second batch of a snapshot. There an event model knows the first batch, and a snapshot model the
snapshots before. Both runs are asked the same questions about that snapshot, because negatives are drawn from its own
destinations, too.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from labels_of_nodes import labels_file
from trainer_sessions import examples_of
from trainer_streams import SECOND
from triples import Triple, config_for, each_model

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import Op, event_schema
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import SnapshotTrainer
from freshet_graph.trainer.tasks.edge_classification import LabelScores
from freshet_graph.trainer.tasks.interface import SnapshotExamples

NODES, NODE_FEATURES, EDGE_FEATURES = 24, 3, 2
BATCH = 200
"""Events of a snapshot that are predicted from one moment (docs/semantics.md, Evaluation)."""
INSERTS = [30, 30, 30, BATCH + 40, 20]
"""Of each snapshot."""
FLIPPED = 3
"""The snapshot in which the second stream begins to differ."""


def stream(*, flipped: bool) -> pa.Table:
    """Meetings, deletes and changed features of nodes that all live from the first snapshot on.

    From the second batch of a snapshot on, a ``flipped`` stream has other weights, labels and features, other deletes, and for
    every second insert another destination. The others keep theirs, so they are asked about in both streams.
    """
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    rows: list[dict[str, Any]] = [
        {"op": Op.NODE, "src": node, "t": 0, "features": rng.normal(size=NODE_FEATURES)}
        for node in range(NODES)
    ]
    for tau, inserts in enumerate(INSERTS):
        times = np.sort(rng.integers(1, SECOND, inserts))
        times[BATCH + 1 : BATCH + 2] = times[BATCH : BATCH + 1]  # the second batch begins with equal times
        for place, t in enumerate(tau * SECOND + times):
            src, dst = rng.choice(NODES, 2, replace=False)
            if tau == 0 and place < NODES:
                src, dst = place, (place + 1) % NODES
            row = {
                "op": Op.INSERT, "src": src, "dst": dst, "t": t, "weight": rng.uniform(0.5, 2), "label": place % 2,
                "features": rng.normal(size=EDGE_FEATURES),
            }  # fmt: skip
            delete = {"op": Op.DELETE, "src": src, "dst": dst, "t": t}
            node = {"op": Op.NODE, "src": src, "t": t, "features": rng.normal(size=NODE_FEATURES)}
            if flipped and (tau > FLIPPED or (tau == FLIPPED and place >= BATCH)):
                row |= {"weight": other.uniform(2, 4), "label": 1 - row["label"]}
                row["features"] = 2 + other.normal(size=EDGE_FEATURES)
                node["features"] = 2 + other.normal(size=NODE_FEATURES)
                delete["dst"] = (dst + 1) % NODES
                if place % 2 == 0:
                    row["dst"] = other.choice(np.setdiff1d(np.arange(NODES), [src, dst]))
            rows += [row, *([delete] if place % 16 == 8 else []), *([node] if place % 16 == 9 else [])]
    schema = event_schema("int")
    default = {"weight": 1.0}
    return pa.table(
        {name: [row.get(name, default.get(name)) for row in rows] for name in schema.names}, schema=schema
    )


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> list[LaneReader]:
    """The stream as it was, and flipped."""
    found = []
    for flipped in (False, True):
        store = tmp_path_factory.mktemp("lane") / "store"
        build_store(
            stream(flipped=flipped), store, interval_us=SECOND, segments=1, node_features=NODE_FEATURES,
            edge_features=EDGE_FEATURES, lanes=[Lane(name="hash", algorithm="hash", parts=2)],
        )  # fmt: skip
        found.append(LaneReader(store, "hash"))
    return found


@dataclasses.dataclass
class Run:
    """A session, and what it scored, exported and weighed so far."""

    session: Session
    snapshot_trainer: SnapshotTrainer
    found: list[Any]


def run(lane: LaneReader, together: Triple, *, flipped: bool) -> Run:
    """Learn the snapshots that both streams have, and predict the last of them: a look ahead sees most of the future there."""
    labels = {"labels": labels_file(flipped_from=FLIPPED)}
    of_nodes = {"task_params": labels} if flipped and together[2] == "node-classification" else {}
    session = Session(config_for(together, **of_nodes), lane, Ranks())
    made = Run(session, SnapshotTrainer(session), [])
    for sequence in range(FLIPPED):
        examples = examples_of(session, sequence)
        if sequence == FLIPPED - 1:
            made.found += scores(session, examples)
        learn(made, examples)
    made.found += [exported(session), *weights(session)]
    return made


def scores(session: Session, examples: SnapshotExamples) -> list[Any]:
    """All scores of a snapshot, by the model and beside it: of what ``judge`` returns, the floating arrays."""
    judged = session.task.evaluate(
        session.strategy, session.model, session.untrained, examples, session.ranks
    )
    if isinstance(
        judged, LabelScores
    ):  # a row has its event's own values, which a flipped event has others of
        until_us = np.append(examples.times[:BATCH], examples.times[BATCH : BATCH + 1])[-1]
        judged = dataclasses.replace(judged, scores=judged.scores[judged.time_us < until_us])
    return [each for each in arrays(judged) if np.issubdtype(each.dtype, np.floating)]


def arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from arrays(getattr(value, field.name))


def learn(run: Run, examples: SnapshotExamples) -> None:
    torch.manual_seed(examples.tau)  # dropout
    run.snapshot_trainer.learn(examples, 1.0)


def exported(session: Session) -> Any:
    return session.strategy.embeddings(np.arange(NODES)).detach().numpy()


def weights(session: Session) -> list[Any]:
    return [each.clone().numpy() for each in session.model.state_dict().values()]


def knowledge(examples: SnapshotExamples) -> dict[tuple[int, ...], tuple[float, ...]]:
    """By the integers of a question, which say what is asked, its floating columns, which say what is known."""
    asked, _ = examples.part(np.arange(len(examples)))
    columns = list(arrays(asked))
    question = np.column_stack([each for each in columns if np.issubdtype(each.dtype, np.integer)])
    known = np.column_stack([each for each in columns if np.issubdtype(each.dtype, np.floating)])
    return dict(zip(map(tuple, question.tolist()), map(tuple, known.tolist()), strict=True))


def require_same_bits(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other) > 0
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@each_model
def test_changing_the_future_changes_no_bit_before_it(together: Triple, lanes: list[LaneReader]) -> None:
    one, other = runs = [
        run(lane, together, flipped=flipped) for lane, flipped in zip(lanes, (False, True), strict=True)
    ]
    require_same_bits(one.found, other.found)
    before = weights(one.session)

    examples, flipped = (examples_of(each.session, FLIPPED) for each in runs)
    known, known_there = knowledge(examples), knowledge(flipped)
    common = known.keys() & known_there.keys()
    assert len(common) >= NODES // 2
    assert [known[question] for question in common] == [known_there[question] for question in common]
    require_same_bits(*(scores(each.session, examples) for each in runs))

    past, place = examples, np.arange(examples.items)
    if one.session.model.kind == "event":
        # The last batch that is learned begins with the first flipped event. Later ones know it.
        step = one.session.strategy.step_events
        past = examples.of_events((place >= BATCH % step) & (place < BATCH + step))
    for each in runs:
        learn(each, past)
    require_same_bits(weights(one.session), weights(other.session))
    assert not all(map(np.array_equal, before, weights(one.session)))
    ours, theirs = (exported(each.session) for each in runs)
    # The evolved weights of evolvegcn-h may let nothing through.
    assert not np.array_equal(ours, theirs) or not ours.any(), "the next prediction knows the flipped events"
    for each in runs:
        each.session.close()
