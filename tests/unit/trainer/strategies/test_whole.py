"""``whole`` beside a dense computation over all ids, beside ``vertex``, and beside itself after a restart."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from dense_tgcn import SIGNATURE, WINDOW, Dense, config_for, lane_of, shaken
from torch import Tensor
from trainer_streams import meetings

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.exports import ExportReader
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow, SnapshotTrainer, past_examples

TASKS = pytest.mark.parametrize("task", ["node-regression", "link-prediction"])


def plain_answers(model: Any, asked: Any, z: Tensor) -> Tensor:
    return asked.read(model.decoder, [z[torch.from_numpy(ends)] for ends in asked.ends])


@TASKS
@pytest.mark.parametrize("supervise", ["newest", "horizon"])
def test_predictions_and_gradients_are_those_of_a_dense_computation_over_all_ids(
    supervise: str, task: str, tmp_path: Path
) -> None:
    lane = lane_of(tmp_path)
    dense = Dense(lane)
    session = Session(
        config_for(tmp_path, task=task, strategy_params={"supervise": supervise, "steps": 1}), lane, Ranks()
    )
    shaken(session.model)
    snapshot_trainer, former = SnapshotTrainer(session), []
    for at, manifest in enumerate(lane.manifests):
        session.advance(manifest)
        examples = session.task.examples(session.view, session.strategy)
        asked, truth = examples.part(np.arange(len(examples)))
        first = max(0, at - WINDOW)
        with torch.no_grad():
            z = dense.tgcn(session.model, first, at)
            expected = plain_answers(session.model, asked, z)
        (found,) = session.strategy.answer(session.model, [asked])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        if not len(truth):
            continue
        learned = [*former, (at, asked, truth)] if supervise == "horizon" else [(at, asked, truth)]
        former = learned[-WINDOW + 1 :]
        losses = [
            session.task.loss(
                plain_answers(session.model, each, dense.tgcn(session.model, first, when)),
                torch.from_numpy(right),
            )
            for when, each, right in learned
        ]
        queries = sum(len(right) for *_, right in learned)
        loss = torch.stack(losses).sum() / queries
        gradients = torch.autograd.grad(loss, list(session.model.parameters()), allow_unused=True)
        report = snapshot_trainer.learn(examples, 1.0)
        assert report.loss == pytest.approx(loss.item(), rel=1e-4)
        for (name, weights), gradient in zip(session.model.named_parameters(), gradients, strict=True):
            if gradient is None or weights.grad is None:
                assert weights.grad is None or not weights.grad.any(), name
            else:
                torch.testing.assert_close(
                    weights.grad,
                    gradient,
                    rtol=1e-3,
                    atol=1e-5,
                    msg=lambda text, name=f"{at} {name}": f"{name}: {text}",
                )
        if at == len(lane.manifests) - 1:
            assert any(gradient.abs().max() > 1e-3 for gradient in gradients)
            held = session.strategy.timeline.before_newest(np.empty(0, np.int64))
            assert 0 < np.count_nonzero(held.nodes >= 0) < manifest.num_nodes, "numbers are compact"


def test_states_that_are_convolved_are_those_of_a_dense_computation(tmp_path: Path) -> None:
    """A state is zero until its node has come, whatever the biases are."""
    events = meetings(nodes=60, a_snapshot=12, snapshots=WINDOW)
    lane = lane_of(tmp_path, events.filter(pc.equal(events["op"], 1)))  # nodes come with their first event
    dense, params = Dense(lane), {"hidden": 6, "signature": SIGNATURE, "layers": 1}
    session = Session(config_for(tmp_path, model="dcrnn", model_params=params), lane, Ranks())
    shaken(session.model)
    for manifest in lane.manifests:
        session.advance(manifest)
    (cell,), nodes = session.model.stages, len(dense.there[0])
    h = torch.zeros(nodes, 6)

    def diffused(walks: list[Tensor], x: Tensor) -> Tensor:
        return torch.cat([x, *(walk @ x for walk in walks)], dim=1)

    for at in range(WINDOW):
        weights = np.zeros((nodes, nodes), np.float32)
        src, dst, weight = session.view.pairs(dense.taus[at])
        weights[src, dst] = weight
        np.fill_diagonal(weights, 0)
        totals = [np.maximum(each.sum(axis=1, keepdims=True), 1e-9) for each in (weights, weights.T)]
        walks = [torch.from_numpy(w / total) for w, total in zip((weights, weights.T), totals, strict=True)]
        gates, candidate = cell.of_inputs(diffused(walks, dense.rows[at])).tensor_split([12], dim=1)
        u, r = torch.sigmoid(gates + cell.of_state(diffused(walks, h))).chunk(2, dim=1)
        c = torch.tanh(candidate + cell.of_reset(diffused(walks, r * h)))
        h = (u * h + (1 - u) * c) * dense.there[at][:, None]
    found = session.strategy.embeddings(np.arange(nodes))
    torch.testing.assert_close(found, h.detach(), rtol=1e-4, atol=1e-5)
    assert 0 < dense.there[0].sum() < dense.there[WINDOW - 1].sum()


@TASKS
@pytest.mark.parametrize("name", ["sage-linear", "dysat"])
def test_whole_and_vertex_agree_where_all_neighbours_are_taken(name: str, task: str, tmp_path: Path) -> None:
    """Nodes that come within the window have no row before, whatever the biases are.

    Some have come and have no edge yet, or no longer, and so no owner.
    """
    lane = lane_of(tmp_path, meetings(nodes=60, a_snapshot=12, snapshots=7))
    assert (lane.manifests[-1].num_nodes, WINDOW) == (60, 3)
    params = {"hidden": 6, "signature": 4, "fanouts": [None, None]}
    params |= {"heads": 2, "temporal_heads": 3} if name == "dysat" else {}
    model: dict[str, Any] = {"model": name, "model_params": params, "task": task, "strategy_params": {}}
    sessions = [
        Session(config_for(tmp_path, strategy=strategy, **model), lane, Ranks())
        for strategy in ("whole", "vertex")
    ]
    for session in sessions:
        shaken(session.model)
    compared = 0
    for manifest in lane.manifests:
        answers, tables = [], []
        for session in sessions:
            session.advance(manifest)
            examples = session.task.examples(session.view, session.strategy)
            answers.append(
                session.strategy.answer(session.model, [examples.part(np.arange(len(examples)))[0]])[0]
            )
            tables.append(session.strategy.embeddings(np.arange(manifest.num_nodes)))
        np.testing.assert_allclose(*answers, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(*tables, rtol=1e-5, atol=1e-5)
        compared += len(answers[0])
    assert compared > 100


def test_numbers_of_nodes_change_nothing_but_their_places(tmp_path: Path) -> None:
    """Without signatures a stream whose nodes are introduced in another order has the same embeddings."""
    events = meetings(nodes=60, a_snapshot=25, snapshots=5)
    rows = events.to_pylist()
    vectors, rest = [row for row in rows if row["op"] == 0], [row for row in rows if row["op"]]
    order = np.random.default_rng(2).permutation(len(vectors))
    tables = []
    for name, firsts in (("a", vectors), ("b", [vectors[at] for at in order])):
        lane = lane_of(tmp_path / name, pa.Table.from_pylist(firsts + rest, schema=events.schema))
        config = config_for(tmp_path / name, model_params={"hidden": 6, "signature": 0})
        session = Session(config, lane, Ranks())
        shaken(session.model)
        learning = SnapshotTrainer(session)
        for manifest in lane.manifests:
            session.advance(manifest)
            learning.learn(session.task.examples(session.view, session.strategy), 1.0)
        tables.append(session.strategy.embeddings(np.arange(len(vectors))))
    torch.testing.assert_close(tables[1], tables[0][torch.from_numpy(order)], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(*tables, atol=1e-3)


def run(config: TrainerConfig, snapshots: int | None = None) -> Trainer:
    lane = LaneReader(config.store, config.lane)
    metrics = TrainerMetrics(config, 0)
    metrics.graph(lane.header.graph)
    trainer = Trainer(config, lane, Ranks(), metrics)
    for manifest in list(lane.manifests)[trainer.sequence + 1 : snapshots]:
        trainer.step(manifest)
    return trainer


@TASKS
@pytest.mark.parametrize("supervise", ["newest", "horizon"])
def test_a_run_that_was_interrupted_goes_on_bit_by_bit(supervise: str, task: str, tmp_path: Path) -> None:
    lane_of(tmp_path)
    weights, lines = [], []
    for name, stops in (("straight", [None]), ("broken", [1, 4, None])):
        more = {"task": task, "strategy_params": {"supervise": supervise, "steps": 2}}
        config = config_for(tmp_path, checkpoint=str(tmp_path / name), **more)
        for stop in stops:
            trainer = run(config, stop)
        weights.append(trainer.session.model.state_dict())
        # A run that begins again sends the device everything anew.
        others = {"seconds", "train_seconds", "wall_time", "lag", "transfer_bytes"}
        lines.append(
            [
                {k: v for k, v in line.items() if k not in others}
                for line in ScoreFile(config.checkpoint).lines()
            ]
        )
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert lines[0] == lines[1]
    assert len(lines[0]) == 7


@TASKS
@pytest.mark.parametrize("supervise", ["newest", "horizon"])
@pytest.mark.parametrize("batch", [4, 40, 100])
def test_steps_divide_the_items_of_every_snapshot_anew_in_each_epoch(
    batch: int, supervise: str, task: str, tmp_path: Path
) -> None:
    """Every question is learned once in a pass, and a step has about a batch of the items, or more."""
    lane = lane_of(tmp_path)
    config = config_for(
        tmp_path, task=task, strategy_params={"supervise": supervise, "steps": 3}, optimisation={"batch_size": batch}
    )  # fmt: skip
    session = Session(config, lane, Ranks())
    strategy, book = session.strategy, ExampleWindow(session.task, session.strategy.needs.example_sets)
    learned: list[np.ndarray] = []

    def loss(answers: Tensor, truth: Tensor, reduction: str = "sum") -> Tensor:
        learned.append(truth.numpy())
        return answers.sum() * 0 + len(truth)

    session.task.loss = loss
    for manifest in lane.manifests:
        session.advance(manifest)
        examples = session.task.examples(session.view, strategy)
        book.open(examples)
        snapshot_trainer = book.with_newest(examples)
        if not len(examples):
            assert strategy.learn(snapshot_trainer, 0).steps == 0
            continue
        passes, steps = [], min(3, -(-max(map(len, snapshot_trainer)) // batch))
        for epoch in range(2):
            learned.clear()
            report = strategy.learn(snapshot_trainer, epoch)
            assert (report.steps, report.events, report.loss) == (steps, len(examples), 1.0)
            by_step = [
                learned[at : at + len(snapshot_trainer)]
                for at in range(0, len(learned), len(snapshot_trainer))
            ]
            assert len(by_step) == steps
            for each, parts in zip(snapshot_trainer, zip(*by_step, strict=True), strict=True):
                sizes = [len(part) for part in parts]
                assert max(sizes) - min(sizes) <= each.queries_per_example
                _, truth = each.part(np.arange(len(each)))
                np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(truth))
            passes.append([truth.tolist() for truth in learned])
        if (
            steps > 1 and task == "node-regression"
        ):  # the truth of links is ones and zeros, whoever they are of
            assert passes[0] != passes[1]


@pytest.mark.parametrize(
    ("strategy", "configured", "expected"),
    [("whole", {}, 0.005), ("vertex", {}, 0.001), ("whole", {"learning_rate": 0.001}, 0.001)],
)
def test_steps_are_longer_than_those_of_others_unless_a_rate_is_configured(
    strategy: str, configured: dict, expected: float, tmp_path: Path
) -> None:
    more = {"model": "sage-linear", "strategy": strategy, "strategy_params": {}, "optimisation": configured}
    session = Session(config_for(tmp_path, **more), lane_of(tmp_path), Ranks())
    rate = session.strategy.learner.rate
    assert rate.now() == rate.optimiser.param_groups[0]["lr"] == expected


@TASKS
def test_a_kept_lesson_has_the_parts_of_the_lesson(task: str, tmp_path: Path) -> None:
    lane = lane_of(tmp_path)
    session = Session(config_for(tmp_path, task=task), lane, Ranks())
    for manifest in lane.manifests[:4]:
        session.advance(manifest)
        examples = session.task.examples(session.view, session.strategy)
    chosen = np.array([0, 3, 4, 11])
    (asked, truth), (again, same) = (each.part(chosen) for each in (examples, past_examples(examples)))
    np.testing.assert_array_equal(truth, same)
    for column in fields(asked):
        np.testing.assert_array_equal(getattr(asked, column.name), getattr(again, column.name))


def test_the_horizon_is_learned_otherwise_than_the_newest(tmp_path: Path) -> None:
    lane_of(tmp_path)
    weights = []
    for supervise in ("newest", "horizon"):
        config = config_for(
            tmp_path, checkpoint=str(tmp_path / supervise), strategy_params={"supervise": supervise}
        )
        weights.append(run(config).session.model.state_dict())
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_embeddings_that_are_exported_are_those_of_the_dense_computation(tmp_path: Path) -> None:
    dense = Dense(lane_of(tmp_path))
    config = config_for(tmp_path, exports={"embeddings": True})
    trainer = run(config)
    found = ExportReader(config.store, config.lane)
    commit = found.commits[-1]
    table = found.table(commit, "embeddings")
    z = dense.tgcn(trainer.session.model, len(dense.taus) - WINDOW, len(dense.taus)).detach()
    wide = np.stack(table["embedding"].to_numpy())
    assert len(wide) > 10
    np.testing.assert_allclose(
        wide, z[torch.from_numpy(table["node"].to_numpy().copy())], rtol=1e-4, atol=1e-5
    )
