"""Node regression: figures beside plain arithmetic, baselines in every report, and nothing known too early."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from prometheus_client import generate_latest
from structlog.testing import capture_logs
from trainer_streams import FEATURES, SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.evaluation.evaluate import _Run, evaluate
from freshet_graph.trainer.evaluation.split import split_by_time
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.service import result
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.tasks.node_regression import KNOWN, SCORERS, NodeRegressor

KEYS = ("mse", "random_mse", "zero_mse", "mean_mse", "persistence_mse", "age_persistence_mse")
WHOLE = {"model": "tgcn", "strategy": "whole", "model_params": {"hidden": 8, "signature": 4}}
VERTEX = {"model": "sage-linear", "strategy": "vertex", "model_params": {"hidden": 8, "signature": 4}}
SYSTEMS = pytest.mark.parametrize("system", [WHOLE, VERTEX], ids=["whole", "vertex"])


def config_for(folder: Path, **more: object) -> TrainerConfig:
    values = {
        "store": str(folder / "store"), "lane": "hash", "task": "node-regression", "window": 2,
        "checkpoint": str(folder / "checkpoints"), "checkpoint_every": 1, "interval_s": 1.0,
        "optimisation": {"epochs": 2, "batch_size": 16, "learning_rate": 0.01}, **WHOLE, **more,
    }  # fmt: skip
    return TrainerConfig.model_validate(values)


def store_of(folder: Path, events: pa.Table, *, edge_life: int | None = 2, features: int = FEATURES) -> None:
    build_store(
        events, folder / "store", interval_us=SECOND, lanes=[Lane(name="hash", algorithm="hash", parts=2, edge_life=edge_life)],
        node_features=features, segments=2, graph="meetings",
    )  # fmt: skip


def run(config: TrainerConfig, snapshots: int | None = None) -> Trainer:
    lane = LaneReader(config.store, config.lane)
    metrics = TrainerMetrics(config, 0)
    metrics.graph(lane.header.graph)
    trainer = Trainer(config, lane, Ranks(), metrics)
    for manifest in list(trainer.lane.manifests)[trainer.sequence + 1 : snapshots]:
        trainer.step(manifest)
    return trainer


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def plain_floors(lane: LaneReader, of: int | None, life: int | None) -> list[dict[str, float]]:
    """Mean squared errors of the baselines in every snapshot, from the log by dictionaries."""
    seen: dict[tuple[int, int], int] = {}
    feature: dict[int, float] = {}
    nodes, so_far, found = 0, [], []

    def values(pairs: set[tuple[int, int]]) -> np.ndarray:
        if of is not None:
            return np.array([feature.get(node, 0.0) for node in range(nodes)])
        counts = np.zeros(nodes)
        for _, dst in pairs:
            counts[dst] += 1
        return np.log1p(counts)

    for manifest in lane.manifests:
        tau = manifest.tau
        ending = {pair for pair, then in seen.items() if life is not None and tau - then >= life}
        known, ageing, asked = values(set(seen)), values(set(seen) - ending), nodes
        for pair in ending:
            del seen[pair]
        for row in lane.log.events(tau).to_pylist():
            src, dst = row["src_node"], row["dst_node"]
            nodes = max(nodes, src + 1, dst + 1)
            if row["op"] == 1:
                seen[src, dst] = tau
            elif row["op"] == -1:
                seen.pop((src, dst), None)
            elif row["features"]:
                feature[src] = row["features"][of or 0]
        target = values(set(seen))[:asked]
        if asked:
            mean = np.mean(so_far) if so_far else 0.0
            baselines = {
                "zero": 0.0 * target,
                "mean": mean + 0.0 * target,
                "persistence": known,
                "age_persistence": ageing,
            }
            found.append(
                {
                    f"{name}_mse": float(np.mean((baseline - target) ** 2))
                    for name, baseline in baselines.items()
                }
            )
        else:
            found.append({})
        so_far.extend(target)
    return found


@pytest.mark.parametrize(("of", "life"), [(None, None), (None, 1), (None, 2), (1, 2)])
def test_floors_are_those_of_plain_arithmetic_in_file_metric_and_result(
    of: int | None, life: int | None, tmp_path: Path
) -> None:
    events = moving(meetings())
    store_of(tmp_path, events, edge_life=life)
    target = {"next": "feature", "of": of} if of is not None else {"next": "in_degree"}
    config = config_for(tmp_path, task_params=target)
    trainer = run(config)
    lines = ScoreFile(config.checkpoint).lines()
    expected = plain_floors(trainer.lane, of, life)
    assert len(lines) == len(expected) == 6
    for line, baselines in zip(lines, expected, strict=True):
        for key, value in baselines.items():
            assert line[key] == pytest.approx(value, rel=1e-5, abs=1e-9)
    assert set(KEYS) <= lines[-1].keys()
    text = generate_latest(trainer.metrics.registry).decode()
    for scorer in SCORERS:
        name = f'freshet_trainer_score{{graph="meetings",metric="mse",scorer="{scorer}",subset="all"}} '
        (value,) = [line[len(name) :] for line in text.splitlines() if line.startswith(name)]
        assert float(value) == lines[-1][f"{scorer}_mse".removeprefix("model_")]
    told = result(config, since=0.0)
    scored = [line["scored"] for line in lines]
    for key in KEYS:
        weighted = sum(line[key] * n for line, n in zip(lines, scored, strict=True) if n) / sum(scored)
        assert told[key] == pytest.approx(weighted)


def moving(events: pa.Table) -> pa.Table:
    """With features that change from snapshot to snapshot."""
    rng = np.random.default_rng(3)
    rows = events.to_pylist()
    more = [
        {**rows[0], "src": int(node), "t": tau * SECOND + 5, "features": rng.normal(size=FEATURES).tolist()}
        for tau in range(1, 6)
        for node in rng.integers(0, 30, 8)
    ]
    return pa.Table.from_pylist(sorted(rows + more, key=lambda row: row["t"]), schema=events.schema)


@SYSTEMS
def test_a_model_learns_beyond_the_floors(system: dict, tmp_path: Path) -> None:
    store_of(tmp_path, meetings(snapshots=12, a_snapshot=80))
    config = config_for(
        tmp_path, **system, optimisation={"epochs": 8, "batch_size": 8, "learning_rate": 0.01}
    )
    run(config)
    lines = [line for line in ScoreFile(config.checkpoint).lines() if line["scored"]]
    late = {key: np.mean([line[key] for line in lines[-5:]]) for key in KEYS}
    assert late["mse"] < 0.9 * min(value for key, value in late.items() if key != "mse")


@SYSTEMS
@pytest.mark.parametrize(
    ("encounters", "baseline"),
    [(True, "age_persistence_mse"), (False, "persistence_mse")],
    ids=["all", "paper"],
)
def test_a_model_begins_as_the_floor_that_knows_what_it_knows(
    encounters: bool, baseline: str, system: dict, tmp_path: Path
) -> None:
    store_of(tmp_path, meetings(snapshots=2, a_snapshot=80), edge_life=1)
    model = {**system, "model_params": {**system["model_params"], "encounters": encounters}}
    config = config_for(tmp_path, **model)
    run(config)
    line = ScoreFile(config.checkpoint).lines()[1]
    assert line["mse"] == pytest.approx(line[baseline], rel=1e-5)
    assert line["persistence_mse"] < 0.5 * line["age_persistence_mse"]


def test_the_paper_inputs_do_not_tell_what_expires() -> None:
    head = NodeRegressor(3, 4, encounters=False)
    with torch.no_grad():
        for weights in head.parameters():
            weights.fill_(0.5)
    z, known = torch.rand(5, 3), torch.rand(5, KNOWN)
    other = torch.stack([known[:, 0], torch.rand(5)], dim=1)
    assert torch.equal(head(z, known), head(z, other))
    assert not torch.equal(head(z, known), head(z, known + 1))


@SYSTEMS
def test_the_future_changes_no_weight_and_no_prediction_before_it(system: dict, tmp_path: Path) -> None:
    events = moving(meetings(snapshots=6))
    found, predicted = [], []
    for name, table in (("one", events), ("two", swapped(events, 4 * SECOND))):
        store_of(tmp_path / name, table)
        config = config_for(tmp_path / name, **system)
        session = run(config, 4).session
        before = weights(session.model)
        session.advance(session.lane.manifests[4])  # whose own events are the first that differ
        asked, _ = (examples := session.task.examples(session.view, session.strategy)).part(
            np.arange(len(examples))
        )
        predicted.append(session.strategy.answer(session.model, [asked])[0])
        trainer = run(config)
        found.append((before, ScoreFile(config.checkpoint).lines(), weights(trainer.session.model)))
    (before, one, after), (other_before, two, other_after) = found
    assert same(before, other_before)
    np.testing.assert_array_equal(*predicted)
    assert len(predicted[0]) > 10
    assert [line["mse"] for line in one[1:4]] == [line["mse"] for line in two[1:4]]
    assert one[4]["mse"] != two[4]["mse"]
    assert not same(after, other_after)


def swapped(events: pa.Table, since_us: int) -> pa.Table:
    """From a time on everybody meets node 0 only: other targets, at the same times and of the same nodes."""
    later = pc.greater(events["t"], since_us)
    edge = pc.and_(later, pc.not_equal(events["op"], 0))
    dst = pc.if_else(edge, pa.scalar(0, events["dst"].type), events["dst"])
    return events.set_column(events.column_names.index("dst"), "dst", dst)


def written(folder: Path, events: pa.Table) -> Path:
    """A file of events, with times in seconds."""
    seconds = pa.array([t / SECOND for t in events["t"].to_pylist()])
    names = ["src", "dst", "op", "features"]
    pq.write_table(events.select(names).append_column("t", seconds), folder / "events.parquet")
    return folder / "events.parquet"


def evaluated(
    folder: Path,
    events: pa.Table,
    monkeypatch: pytest.MonkeyPatch,
    shares: tuple = (0.5, 0.2, 0.3),
    **more: object,
):
    """The result of ``evaluate``, and weights at its end."""
    folder.mkdir(exist_ok=True)
    sessions: list[Session] = []
    figures_of = _Run._test_figures
    monkeypatch.setattr(_Run, "_test_figures", lambda self: sessions.append(self.session) or figures_of(self))
    config = config_for(folder, store=None, edge_life=2, **more)
    with capture_logs():
        told = evaluate(config, written(folder, events), Ranks(), shares=shares, seeds=1)
    monkeypatch.undo()
    assert told is not None
    return told, weights(sessions[0].model)


@SYSTEMS
@pytest.mark.parametrize("shares", [(0.5, 0.15, 0.35), (0.55, 0.1, 0.35)], ids=["two", "one"])
def test_targets_of_the_test_change_no_weight(
    system: dict, shares: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the border falls into a snapshot, and however many validate: its targets are the test's, known at its end only."""
    events = meetings(snapshots=14, a_snapshot=40, features=False)
    border = int(split_by_time(np.arange(1, 15) * SECOND - 1, shares).validate_until_us)
    assert SECOND // 10 < border % SECOND < SECOND * 9 // 10, "it falls into a snapshot"
    optimisation = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05}
    more = {**system, "optimisation": optimisation, "shares": shares}
    base, kept = evaluated(tmp_path / "a", events, monkeypatch, **more)
    other, still = evaluated(tmp_path / "b", swapped(events, border), monkeypatch, **more)
    assert same(kept, still)
    for key in ("validation_mse", "best_epoch"):
        assert base["runs"][0].get(key) == other["runs"][0].get(key)
    for key in KEYS:
        assert base[key] != other[key]
    _, moved = evaluated(tmp_path / "c", swapped(events, border // 2), monkeypatch, **more)
    assert not same(kept, moved)


def test_evaluate_tells_all_figures_and_their_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = evaluated(
        tmp_path, meetings(snapshots=10), monkeypatch, task_params={"next": "feature", "of": 1}
    )
    assert {*KEYS, "validation_mse", "train_s", "wait_s"} <= told.keys() | told["runs"][0].keys()
    assert told["train_s"] > 0
    assert told["persistence_mse"] == told["age_persistence_mse"] == 0, "features that never change"
    assert told["zero_mse"] > 0.5
    json.dumps(told, allow_nan=False)


def test_a_graph_that_never_changes_is_split_by_its_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its edges come at once, so quantiles of events would leave nothing to test."""
    still = meetings(nodes=8, a_snapshot=20, snapshots=1)
    rows = [row for row in still.to_pylist() if row["op"] == 1]
    values = np.random.default_rng(5).normal(size=(10, 8)).astype(np.float32)
    rows += [
        {
            **rows[0], "op": 0, "src": node, "dst": None, "t": tau * SECOND + 999_000,
            "features": [float(values[tau, node])] * FEATURES,
        }
        for tau in range(10)
        for node in range(8)
    ]  # fmt: skip
    rows.sort(key=lambda row: row["t"])
    events = pa.Table.from_pylist(rows, schema=still.schema)
    told, _ = evaluated(
        tmp_path, events, monkeypatch, (0.5, 0.2, 0.3), task_params={"next": "feature", "of": 0}
    )
    tested = values[7:]
    assert told["snapshots"] == 10
    assert told["zero_mse"] == pytest.approx(np.mean(tested**2))
    assert told["persistence_mse"] == pytest.approx(np.mean((tested - values[6:9]) ** 2))


@pytest.mark.parametrize(("max_nonfinite", "counted"), [(3, 3), (100, 8)], ids=["in a row", "in all"])
def test_an_evaluation_in_which_no_step_is_finite_ends_with_an_error_and_tells_no_loss(
    max_nonfinite: int, counted: int, tmp_path: Path
) -> None:
    events = meetings(snapshots=10)
    place = events.schema.get_field_index("features")
    extreme = pa.array([each and [1e30] * FEATURES for each in events["features"].to_pylist()])
    events = events.set_column(place, events.schema.field(place), extreme.cast(pa.list_(pa.float32())))
    optimisation = {"epochs": 2, "batch_size": 16, "max_nonfinite": max_nonfinite}
    config = config_for(tmp_path, store=None, edge_life=2, optimisation=optimisation, **VERTEX)
    sentence = rf"not finite in {counted} snapshots in a row, .*features"
    with capture_logs() as logs, pytest.raises(Failure, match=sentence):
        evaluate(config, written(tmp_path, events), Ranks(), shares=(0.5, 0.2, 0.3))
    epochs = [line for line in logs if line["event"] == "epoch"]
    assert len(epochs) == (0 if max_nonfinite == 3 else 2)
    assert not any("loss" in line for line in epochs)


def test_negatives_are_refused_where_nodes_are_asked_about(tmp_path: Path) -> None:
    with pytest.raises(
        Failure, match="--negatives is about pairs, but task node-regression asks about nodes"
    ):
        evaluate(config_for(tmp_path), "x", Ranks(), shares=(0.5, 0.2, 0.3), seeds=1, negatives="n.parquet")


def test_an_interrupted_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    store_of(tmp_path, moving(meetings()))
    straight = config_for(tmp_path, checkpoint=str(tmp_path / "straight"))
    broken = config_for(tmp_path, checkpoint=str(tmp_path / "broken"))
    whole = run(straight)
    run(broken, 3)
    again = run(broken)
    assert same(weights(whole.session.model), weights(again.session.model))
    figures = [
        [
            {key: line.get(key) for key in (*KEYS, "loss", "scored")}
            for line in ScoreFile(each.checkpoint).lines()
        ]
        for each in (straight, broken)
    ]
    assert figures[0] == figures[1]


def test_after_a_compaction_targets_begin_with_what_stands_in_for_the_past(tmp_path: Path) -> None:
    """Baselines of the snapshots that are left are those of a run that saw all, but for the mean of the past."""
    for name, life in (("life", 3), ("ever", None)):
        folder = tmp_path / name
        store_of(folder, meetings(snapshots=10), edge_life=life)
        run(config_for(folder, checkpoint=str(folder / "all")))
        compact(folder / "store", Keep(snapshots=4), always=True)
        left = run(config_for(folder))
        every = {line["tau"]: line for line in ScoreFile(folder / "all").lines()}
        lines = ScoreFile(left.config.checkpoint).lines()
        assert 3 <= len(lines) < 10
        for line in lines:
            for key in ("zero_mse", "persistence_mse", "age_persistence_mse"):
                assert line[key] == pytest.approx(every[line["tau"]][key]), (name, line["tau"], key)


def test_a_feature_that_does_not_exist_is_refused_in_a_sentence(tmp_path: Path) -> None:
    store_of(tmp_path, meetings(snapshots=2))
    with pytest.raises(
        Failure,
        match=r"key task_params: lane hash has 4 node features, so there is no feature 4\. Name one below 4",
    ):
        run(config_for(tmp_path, task_params={"next": "feature", "of": 4}))
    run(config_for(tmp_path, task_params={"next": "feature", "of": 3}))


def test_a_task_that_a_strategy_does_not_answer_is_refused_with_those_that_do(tmp_path: Path) -> None:
    store_of(tmp_path, meetings(snapshots=2))
    events = {"model": "tgn", "strategy": "sequential", "model_params": {}}
    with pytest.raises(
        Failure, match=r"task node-regression asks about nodes, which strategy sequential .* vertex, whole"
    ):
        run(config_for(tmp_path, **events))
