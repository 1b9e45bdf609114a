"""Classes of nodes: figures beside plain arithmetic, no label known before its time, and files that are refused."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from labels_of_nodes import labels_file, store_of, topic_of
from small_trainers import config_for, lines, run
from structlog.testing import capture_logs
from trainer_invoked import _no_logs, invoke, write  # noqa: F401  a fixture
from trainer_sessions import examples_of
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.labels.node_labels import FileLabels, TopicLabels
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import classification
from freshet_graph.trainer.session.session import Session

WHOLE = {"model": "cdgcn", "strategy": "whole", "model_params": {"hidden": 8, "signature": 4}}
CLASSES = 3


def of(folder: Path, **more: object) -> TrainerConfig:
    labels = {"labels": labels_file(classes=CLASSES), "classes": CLASSES}
    return config_for(folder, task="node-classification", **{"task_params": labels, **WHOLE, **more})


def rows_of(file: str) -> list[tuple[int, float, int]]:
    with Path(file).open() as text:
        return [(int(node), float(t), int(label)) for node, t, label in list(csv.reader(text))[1:]]


def plain(lane: LaneReader, file: str, classes: int) -> list[dict[int, tuple[int, int]]]:
    """By node, the class asked for and the last one known before (−1: none), when each snapshot of a lane arrives."""
    ids, rows = lane.log.external_ids().to_pylist(), rows_of(file)
    expected: list[dict[int, tuple[int, int]]] = [{}]
    for manifest in lane.manifests[:-1]:
        begin, end = manifest.tau, manifest.tau + 1
        events = [row for row in lane.log.events(manifest.tau).to_pylist() if row["op"] == 1]
        found = {}
        for node in {row[end] for row in events for end in ("src_node", "dst_node")}:
            own = [(t, label) for other, t, label in rows if other == ids[node]]
            before, through = ([label for t, label in own if t < moment] for moment in (begin, end))
            if through:
                found[node] = through[-1], before[-1] if before else -1
        expected.append(found)
    return expected


def test_what_is_asked_and_what_is_known_is_that_of_plain_arithmetic(tmp_path: Path) -> None:
    """A label of the asked snapshot is the answer and nothing else; later ones are not there yet."""
    lane = make_lane(tmp_path / "store")
    config = of(tmp_path)
    session = Session(config, lane, Ranks())
    expected = plain(lane, config.task_params["labels"], CLASSES)
    newer = 0
    for sequence, found in enumerate(expected):
        examples = examples_of(session, sequence)
        queries, truth = examples.all_queries()
        assert dict(zip(queries.node.tolist(), truth.tolist(), strict=True)) == {
            node: label for node, (label, _) in found.items()
        }
        known = np.where(queries.known.any(axis=1), queries.known.argmax(axis=1), -1)
        assert dict(zip(queries.node.tolist(), known.tolist(), strict=True)) == {
            node: last for node, (_, last) in found.items()
        }
        newer += sum(label != last for label, last in found.values())
    assert newer > 20


def test_baselines_are_those_of_plain_arithmetic_in_file_and_result(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = of(tmp_path)
    lane = run(config).lane
    seen: Counter[int] = Counter()
    expected = plain(lane, config.task_params["labels"], CLASSES)
    for line, found in zip(lines(config), expected, strict=True):
        assert line["scored"] == len(found)
        if not found:
            continue
        most = max(range(CLASSES), key=lambda label: (seen[label], -label))
        right = {
            "majority": [label == most for label, _ in found.values()],
            "last_label": [label == (most if last < 0 else last) for label, last in found.values()],
        }
        new = [last < 0 for _, last in found.values()]
        for scorer, hits in right.items():
            assert line[f"{scorer}_accuracy"] == pytest.approx(np.mean(hits))
            if any(new):
                inductive = np.mean([hit for hit, is_new in zip(hits, new, strict=True) if is_new])
                assert line[f"{scorer}_inductive_accuracy"] == pytest.approx(inductive)
        assert {"accuracy", "random_accuracy", "macro_f1", "random_macro_f1"} <= line.keys()
        assert "auroc" not in line, "three classes have none"
        seen.update(label for label, _ in found.values())
    assert lines(config)[1]["excluded"]["unlabelled"] > 0


def test_a_model_learns_classes_that_no_baseline_knows(tmp_path: Path) -> None:
    """Nodes of two communities, none of which had a label before the one that is asked."""
    make_lane(tmp_path / "store", events=meetings(snapshots=12, nodes=60, a_snapshot=80))
    file = tmp_path / "labels.csv"
    rows = [f"{node},{1 + node * 7 % 11},{int(node < 30)}" for node in range(60)]
    file.write_text("\n".join(["node,t,label", *rows]))
    optimisation = {"epochs": 10, "learning_rate": 0.01}
    config = of(tmp_path, task_params={"labels": str(file)}, optimisation=optimisation)
    run(config)
    late = [line for line in ScoreFile(config.checkpoint).lines()[5:] if "inductive_accuracy" in line]
    for key in ("accuracy", "macro_f1"):
        mean = {
            scorer: np.mean([line[f"{scorer}inductive_{key}"] for line in late])
            for scorer in ("", "majority_", "last_label_")
        }
        assert mean[""] > 0.8
        assert mean[""] > mean["majority_"] + 0.2
        assert mean["last_label_"] == mean["majority_"], "nothing is known of these nodes"


@pytest.mark.parametrize("encounters", [True, False])
def test_the_head_is_one_matrix_that_begins_as_the_last_label_or_sees_none(
    encounters: bool, tmp_path: Path
) -> None:
    lane = make_lane(tmp_path / "store")
    session = Session(
        of(tmp_path, model_params={**WHOLE["model_params"], "encounters": encounters}), lane, Ranks()
    )
    shapes = [tuple(weights.shape) for weights in session.model.decoder.parameters()]
    assert shapes == [(CLASSES, 8 + CLASSES * encounters), (CLASSES,)]
    for sequence in range(3):
        queries, _ = examples_of(session, sequence).all_queries()
    (scores,) = session.strategy.answer(session.model, [queries])
    labelled = queries.known.any(axis=1)
    as_known = scores.argmax(axis=1)[labelled] == queries.known.argmax(axis=1)[labelled]
    assert len(as_known) >= 10
    assert as_known.all() == encounters


def test_a_file_is_evaluated_with_its_labels(tmp_path: Path) -> None:
    events = meetings(snapshots=10, features=False)
    seconds = pa.array([t / SECOND for t in events["t"].to_pylist()])
    pq.write_table(
        events.select(["src", "dst", "op"]).append_column("t", seconds), tmp_path / "events.parquet"
    )
    config = write(
        tmp_path, **WHOLE, task="node-classification", task_params={"labels": labels_file()}, interval_s=1.0
    )
    code, told, error = invoke("evaluate", "--config", config, "--data", str(tmp_path / "events.parquet"))
    assert code == 0, error
    for metric in ("accuracy", "macro_f1", "auroc"):
        for scorer in ("", "random_", "majority_", "last_label_"):
            assert 0 <= told[f"{scorer}{metric}"] <= 1
    assert "validation_macro_f1" in told["runs"][0]
    assert "ap" not in told


def test_labels_change_with_their_times_and_equal_times_in_the_order_of_the_file(tmp_path: Path) -> None:
    events = pa.table({"src": ["ada", "bob"], "dst": ["bob", "cy"], "t": [1.0, 2.0]})
    pq.write_table(events, tmp_path / "events.parquet")
    build_store(tmp_path / "events.parquet", tmp_path / "store")
    file = tmp_path / "labels.parquet"
    rows = [("bob", 5.0, 1), ("ada", 2.0, 1), ("bob", 3.0, 0), ("ada", 2.0, 2), ("zoe", 1.0, 0)]
    node, t, label = zip(*rows, strict=True)
    pq.write_table(pa.table({"label": label, "t": t, "node": node}), file)
    labels = FileLabels(file, LogReader(tmp_path / "store"), 3)
    for _ in range(2):
        labels.rewind()
        moments = [(2.0, [-1, -1, -1]), (2.5, [2, -1, -1]), (4.0, [2, 0, -1]), (9.0, [2, 1, -1])]
        for moment, expected in moments:
            assert labels.before(round(moment * SECOND), np.arange(3)).tolist() == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("node,label\n1,0", "has no column t; found node, label. Labels of nodes have node, t, label"),
        ("node,t,label\n1,2,0\n1,3,2", "row 2: label is 2, expected 0 to 1. Number the classes from 0"),
        ("node,t,label\n1,2,\n", "row 1: label is None, expected 0 to 1"),
        ("node,t,label\n1,,0\n", "row 1: t is missing"),
        ("node,t,label\n,2,0\n", "row 1: node is missing"),
        ("node,t,label\nada,2,0\n", "conversion error to int64"),
        ("node,t,label\n1,then,0\n", "column t has 'then', which"),
    ],
)
def test_a_wrong_file_is_refused_by_its_row(text: str, sentence: str, tmp_path: Path) -> None:
    lane = make_lane(tmp_path / "store")
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(Failure) as refused:
        FileLabels(tmp_path / "labels.csv", lane.log, 2)
    assert sentence in str(refused.value)
    assert str(tmp_path / "labels.csv") in str(refused.value)


def test_labels_of_a_topic_are_those_of_a_file_at_the_same_times_also_after_interruptions(
    tmp_path: Path,
) -> None:
    make_lane(tmp_path / "file" / "store")
    with_file = of(tmp_path / "file")
    rows = [(node, t, label, 0) for node, t, label in rows_of(with_file.task_params["labels"])]
    store_of(tmp_path / "topic" / "store", topic_of([*rows, (3, 2.2, CLASSES, 0), (4, 2.4, -1, 0)]))
    straight, broken = (
        of(tmp_path / "topic", task_params={"classes": CLASSES}, checkpoint=str(tmp_path / name))
        for name in ("straight", "broken")
    )
    run(with_file)
    run(straight)
    for end in (2, 3, None):
        run(broken, snapshots=end)
    ours, theirs, again = (lines(config) for config in (with_file, straight, broken))
    assert sum(line["scored"] for line in ours) > 100
    assert [line["excluded"].pop("wrong_label") for line in theirs] == [0, 0, 0, 2, 0, 0]
    assert [line["excluded"].pop("wrong_label") for line in again] == [0, 0, 0, 2, 0, 0]
    assert theirs == ours
    for line in (*theirs, *again):
        for of_start in ("lag", "transfer_bytes"):
            line.pop(of_start, None)
    assert again == theirs


@pytest.mark.parametrize("kind", ["int", "string"])
def test_a_label_of_a_topic_replaces_one_of_no_higher_priority(kind: str, tmp_path: Path) -> None:
    """Against a plain twin, in random order of arrival. In between states are written and read, and retention drops labels."""
    rng = np.random.default_rng(2)
    rows = [
        (int(rng.integers(8)), float(rng.integers(1, 12)), int(rng.integers(-1, 4)), int(rng.integers(3)))
        for _ in range(60)
    ]
    node = pa.array(range(7), pa.int64()).cast(pa.string() if kind == "string" else pa.int64())
    events = pa.table({"src": node, "dst": node, "t": pa.array(range(7), pa.float64())})
    pq.write_table(events, tmp_path / "events.parquet")
    build_store(tmp_path / "events.parquet", tmp_path / "store", labels=topic_of(rows, kind))
    log = LogReader(tmp_path / "store")
    every, labels = log.labels(), TopicLabels(log, 3)
    for moment in (0.0, 2.0, 2.0, 3.5, 8.0, 20.0):
        newest: dict[int, tuple[int, int]] = {}
        for one, visible, label, priority in sorted(rows, key=lambda row: row[1]):
            if visible < moment and 0 <= label < 3 and priority >= newest.get(one, (-1, -1))[1]:
                newest[one] = label, priority
        expected = [newest.get(int(one), (-1, -1))[0] for one in log.external_ids().to_pylist()]
        assert labels.before(round(moment * SECOND), np.arange(7)).tolist() == expected
        state, labels = labels.state(), TopicLabels(log, 3)
        labels.restore(state)
        not_dropped = every.filter(pc.greater_equal(every["visible_us"], round(moment * SECOND)))
        log.labels = lambda after=-1, left=not_dropped: left  # as retention leaves them


def test_a_store_with_labels_of_nodes_is_evaluated_by_them_and_one_without_is_refused(tmp_path: Path) -> None:
    events = meetings(snapshots=10)
    rows = [(node, t, label, 0) for node, t, label in rows_of(labels_file())]
    store_of(tmp_path / "labelled", topic_of(rows), events)
    make_lane(tmp_path / "bare", events=events)
    config = write(tmp_path, **WHOLE, task="node-classification", interval_s=1.0)
    code, told, error = invoke("evaluate", "--config", config, "--data", str(tmp_path / "labelled"))
    assert code == 0, error
    with_file = write(
        tmp_path, **WHOLE, task="node-classification", interval_s=1.0, task_params={"labels": labels_file()}
    )
    code, other, error = invoke("evaluate", "--config", with_file, "--data", str(tmp_path / "bare"))
    assert code == 0, error
    for key in ("macro_f1", "last_label_macro_f1", "auroc", "random_accuracy"):
        assert told[key] == other[key]
    config = write(tmp_path, **WHOLE, task="node-classification", interval_s=1.0)
    code, _, error = invoke("evaluate", "--config", config, "--data", str(tmp_path / "bare"))
    assert code == 1
    assert "task node-classification needs labels, and no node of the data has one. Name a file" in error


@pytest.mark.parametrize("none", [True, False])
def test_a_stream_without_labels_of_nodes_is_told_once(none: bool, tmp_path: Path) -> None:
    store_of(tmp_path / "store", topic_of([(1, 90.0 if none else 0.5, 1, 0)]))
    with capture_logs() as logs:
        run(of(tmp_path, task_params={}))
    told = [entry["event"] for entry in logs if "label" in entry["event"]]
    assert told == ["no node has a label of a topic yet, so nothing is learned"] * none


def test_figures_are_those_of_their_definitions() -> None:
    scores = np.array([[3, 1, 0], [0, 2, 1], [0, 2, 1], [5, 1, 1], [0, 1, 1]], float)
    label = np.array([0, 1, 2, 1, 1])
    figures = classification(np.column_stack([scores, np.full(5, -9.0)]), label)
    # class 0: 1 hit of 2 guesses and 1 event; class 1: 2 of 3 and 3; class 2: 0 of 0 and 1; class 3 is nowhere
    assert figures == {"accuracy": pytest.approx(3 / 5), "macro_f1": pytest.approx((2 / 3 + 2 / 3 + 0) / 3)}
    two = classification(np.array([[0, 1.0], [0, 3.0], [1.0, 0]]), np.array([0, 1, 0]))
    assert two["auroc"] == 1.0
