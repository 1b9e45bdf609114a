"""Edge classification in the continual run: labels are learned after they were predicted, and a restart changes nothing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from labels_of_nodes import store_of, topic_of
from small_trainers import EVENT_MODEL, KINDS, config_for, lines, run, trainer_for
from structlog.testing import capture_logs
from trainer_processes import configure, run_to_end, scored
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.events import label_schema
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.service import result
from freshet_graph.trainer.tasks.edge_classification import AUROCS


def labelled(*, flipped_from: int | None = None) -> pa.Table:
    """Sources of one community have label 1, mostly; ``flipped_from``: from that snapshot on it is the other way round."""
    events = meetings()
    rng = np.random.default_rng(4)
    label = (events["src"].to_numpy() < 15) ^ (rng.random(len(events)) < 0.1)
    t = events["t"].to_numpy()
    if flipped_from is not None:
        label ^= t >= flipped_from * SECOND
    column = pa.array(label.astype(np.int32), mask=events["op"].to_numpy() != 1)
    return events.set_column(events.schema.get_field_index("label"), "label", column)


def config_in(folder: Path, name: str, **more: object) -> TrainerConfig:
    few = {"task_params": {"first": 40}, **more}
    return config_for(folder, checkpoint=str(folder / name), task="edge-classification", **few)


@KINDS
def test_an_interrupted_run_gives_the_numbers_of_an_uninterrupted_one(kind: dict, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=labelled())
    straight, broken = (config_in(tmp_path, name, **kind) for name in ("straight", "broken"))
    run(straight)
    run(broken, snapshots=2)
    run(broken, snapshots=4)
    run(broken)
    ours, theirs = lines(straight), lines(broken)
    assert sum("auroc" in line and "random_auroc" in line for line in ours) == 5  # the first is learned only
    for line in (*ours, *theirs):
        del line["lag"]
    assert theirs == ours


def test_trees_stand_beside_the_classifier_if_they_are_asked_for_also_after_an_interruption(
    tmp_path: Path,
) -> None:
    make_lane(tmp_path / "store", events=labelled())
    found = {}
    for name, ends in {"straight": [None], "broken": [3, None]}.items():
        config = config_in(tmp_path, name, task_params={"first": 40, "baselines": ["boosting"]})
        for end in ends:
            run(config, snapshots=end)
        found[name] = lines(config)
        for line in found[name]:
            del line["lag"]
    assert found["broken"] == found["straight"]
    ours = [line for line in found["straight"] if "boosting_auroc" in line]
    assert len(ours) == 5 and all("boosting_vectors_average_precision" in line for line in ours)
    assert ours[-1]["boosting_auroc"] > 0.7


def test_labels_are_predicted_before_they_are_learned_and_reach_no_model(tmp_path: Path) -> None:
    """Labels become visible a snapshot after their events, so those of the fifth snapshot are judged in the sixth."""
    late = {"first": 40, "delay_s": 1, "calibrate": True}
    stores = {"as-they-were": labelled(), "flipped": labelled(flipped_from=4)}
    found = {}
    for name, events in stores.items():
        make_lane(tmp_path / name, events=events)
        config = config_in(tmp_path, f"{name}-checkpoints", store=str(tmp_path / name), task_params=late)
        run(config)
        found[name] = lines(config)
    ours, theirs = found.values()
    assert ours[:5] == theirs[:5]
    assert theirs[5]["auroc"] == pytest.approx(1 - ours[5]["auroc"])
    of_labels = (
        "auroc",
        "average_precision",
        "base_rate",
        "brier",
        "calibration_error",
        "recall_at_budget_ceiling",
    )
    for line in (ours[5], theirs[5]):
        for key in [key for key in line if key.endswith(of_labels)]:
            del line[key]
    assert theirs[5] == ours[5]


def test_a_label_as_a_message_changes_the_memory_from_its_own_time_on_and_nothing_before(
    tmp_path: Path,
) -> None:
    learned = {**EVENT_MODEL, "task_params": {"first": 40, "delay_s": 1.5, "messages": True}}
    stores = {"as-they-were": labelled(), "flipped": labelled(flipped_from=2)}
    found = {}
    for name, events in stores.items():
        make_lane(tmp_path / name, events=events)
        config = config_in(tmp_path, f"{name}-checkpoints", store=str(tmp_path / name), **learned)
        run(config)
        found[name] = lines(config)
    ours, theirs = found.values()
    assert ours[:3] == theirs[:3]  # flipped labels are visible from 3.5 s on
    assert all(a["ap"] != b["ap"] for a, b in zip(ours[4:], theirs[4:], strict=True))


def test_a_checkpoint_from_before_labels_could_wait_continues_with_a_new_classifier(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=labelled())
    trainer = run(config_in(tmp_path, "checkpoints"), snapshots=5)
    state = trainer.session.task.state()
    older = {name: state[name] for name in ("known_nodes", "history")}
    with capture_logs() as logs:
        trainer.session.task.restore(older | {"classifiers": {"model": {"weights": {}}}})
    assert [entry["event"] for entry in logs] == [
        "the checkpoint is older than the classifier of labels, which begins without any"
    ]
    trainer.step(trainer.lane.manifests[5])
    assert "ap" in lines(config_in(tmp_path, "checkpoints"))[5]


def test_labels_of_a_topic_judge_as_those_that_came_with_their_events(tmp_path: Path) -> None:
    """The same labels at the same times, in two forms: the runs agree in every figure, also through an interruption."""
    came_with = labelled()
    ids = pa.array([f"event {row}" for row in range(len(came_with))])
    place, id_place = (came_with.schema.get_field_index(name) for name in ("label", "event_id"))
    with_ids = came_with.set_column(id_place, "event_id", ids)
    bare = with_ids.set_column(place, "label", pa.nulls(len(with_ids), pa.int32()))
    is_labelled = came_with["label"].is_valid()
    t_us = pa.compute.add(came_with["t"], SECOND)
    late = {
        "event_id": ids, "node": pa.nulls(len(ids), pa.int64()), "label": came_with["label"], "t": t_us, "visible_us": t_us,
        "commit": pa.array(np.arange(len(ids), dtype=np.int32)), "source": pa.nulls(len(ids), pa.string()),
        "priority": pa.array(np.zeros(len(ids), np.int32)),
    }  # fmt: skip
    topic = pa.table(late).filter(is_labelled).cast(label_schema("int"))
    make_lane(tmp_path / "with", events=with_ids)
    make_lane(tmp_path / "bare", events=bare)
    parts = {"with": [None], "bare": [None], "broken": [2, 3, None]}
    found = {}
    for name, ends in parts.items():
        store = str(tmp_path / ("with" if name == "with" else "bare"))
        delay = {"delay_s": 1.0} if name == "with" else {}
        config = config_in(tmp_path, name, store=store, task_params={"first": 40, **delay})
        for end in ends:
            trainer = trainer_for(config)
            if name != "with":
                trainer.lane.log.labels = lambda after=-1: topic.filter(
                    pa.compute.greater(topic["commit"], after)
                )
            for manifest in trainer.lane.manifests[trainer.sequence + 1 : end]:
                trainer.step(manifest)
        found[name] = lines(config)
        for line in found[name]:
            del line["lag"]
    assert sum("average_precision" in line for line in found["with"]) >= 3
    assert found["bare"] == found["with"]
    assert found["broken"] == found["bare"]


def test_labels_of_nodes_count_at_their_nodes_from_when_they_are_visible(tmp_path: Path) -> None:
    """Some were visible before their nodes came; one is overruled, and one of a lower priority changes nothing."""
    events = meetings()
    t, nodes = (
        events["t"].to_numpy(),
        np.stack([events["src"].to_numpy(), events["dst"].fill_null(0).to_numpy()]),
    )
    is_edge = events["op"].to_numpy() == 1
    rng = np.random.default_rng(3)
    said = [
        (int(node), float(rng.integers(0, 6)) + 0.25, int(rng.integers(2)), int(rng.integers(3)))
        for node in range(25)
    ]
    said += [(node, when + 1, 1 - label, int(rng.integers(3))) for node, when, label, _ in said[:12]]
    said += [(7, 2.5, 2, 2), (99, 0.5, 1, 0)]
    late = events.filter(
        pa.array(~is_edge | (nodes >= 5).all(axis=0) | (t >= 3 * SECOND))
    )  # nodes that come later
    rows = topic_of(said)
    store_of(tmp_path / "store", rows, late)
    endless = {"first": 40, "half_lives_s": [1e15]}
    straight, broken = (config_in(tmp_path, name, task_params=endless) for name in ("straight", "broken"))
    trainer = run(straight)
    run(broken, snapshots=2)
    run(broken, snapshots=4)
    again = run(broken)
    newest: dict[int, tuple[int, int]] = {}
    for node, when, label, priority in sorted(said, key=lambda row: row[1]):
        if when < 6 and label < 2 and priority >= newest.get(node, (-1, -1))[1]:
            newest[node] = label, priority
    ids = trainer.lane.log.external_ids().to_pylist()
    expected = [[node in newest, newest.get(node, (0, 0))[0]] for node in ids]
    for one in (trainer, again):
        labelled = one.session.task.state()["labels"]["memory"]["labelled"]
        assert np.round(labelled[: len(ids), 0], 6).tolist() == expected
    assert sum(line["excluded"]["wrong_label"] for line in lines(straight)) == 1


def test_labels_as_messages_are_of_event_models_under_sequential(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=labelled())
    with pytest.raises(
        Failure, match="key task_params: messages needs an event model under strategy sequential"
    ):
        run(config_in(tmp_path, "checkpoints", task_params={"messages": True}))


def test_snapshots_with_few_positives_carry_a_caution(tmp_path: Path) -> None:
    events = labelled()
    rare = pa.array(np.where(events["src"].to_numpy() == 3, 1, 0).astype(np.int32))
    place = events.schema.get_field_index("label")
    make_lane(tmp_path / "store", events=events.set_column(place, events.schema.field(place), rare))
    config = config_in(tmp_path, "checkpoints")
    with capture_logs() as logs:
        run(config)
    written = [line.get("cautions", []) for line in lines(config)]
    figures = list(AUROCS)
    assert [bool(each) for each in written] == ["auroc" in line for line in lines(config)]
    for caution in (caution for each in written for caution in each):
        assert caution == {"figures": figures, "label": 1, "events": caution["events"]}
        assert 0 < caution["events"] < 10
    assert sum("AUROC" in entry["event"] for entry in logs) == 1
    snapshots = sum(map(bool, written))
    assert result(config, since=0)["cautions"] == [{"figures": figures, "label": 1, "snapshots": snapshots}]


def test_a_label_that_is_neither_0_nor_1_counts_as_none_and_the_run_goes_on(tmp_path: Path) -> None:
    events = labelled()
    place = events.schema.get_field_index("label")
    labels = events["label"].to_pylist()
    third = np.flatnonzero((events["t"].to_numpy() // SECOND == 2) & (events["op"].to_numpy() == 1))
    found = {}
    for name, wrong in (("wrong", [2, -1, -7]), ("none", [None] * 3)):
        for row, label in zip(third[:3].tolist(), wrong, strict=True):
            labels[row] = label
        column = pa.array(labels, pa.int32())
        make_lane(tmp_path / name / "store", events=events.set_column(place, "label", column))
    once = {"epochs": 1, "batch_size": 16}
    few = {"first": 40}
    config = configure(tmp_path / "wrong", task="edge-classification", optimisation=once, task_params=few)
    assert run_to_end(config, 1)["snapshots"] == 6
    run(config_in(tmp_path / "none", "checkpoints", optimisation=once))
    for name in ("wrong", "none"):
        found[name] = scored(tmp_path / name)
    assert [line["excluded"]["wrong_label"] for line in found["wrong"]] == [0, 0, 3, 0, 0, 0]
    assert [line["excluded"]["wrong_label"] for line in found["none"]] == [0] * 6
    for key in (*AUROCS, "average_precision", "ap", "loss"):
        assert [line.get(key) for line in found["wrong"]] == [line.get(key) for line in found["none"]]


@pytest.mark.parametrize("none", [True, False])
def test_a_stream_without_labels_is_told_once(none: bool, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings() if none else labelled())
    with capture_logs() as logs:
        run(config_in(tmp_path, "checkpoints"))
    told = [entry for entry in logs if "label" in entry["event"]]
    assert [entry["event"] for entry in told] == [
        "no event has a label yet, so only links are learned"
    ] * none
