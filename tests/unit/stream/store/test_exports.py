"""What a trainer exports: whole or not at all, in order, of every touched node, held back while it predicts badly."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import warm_popen
from exported import add
from exporting_trainers import BOTH, KINDS, config_for, exports, moved
from prometheus_client import generate_latest
from small_trainers import run, trainer_for
from structlog.testing import capture_logs
from thread_ranks import side_by_side
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.exports import ExportCommit
from freshet_graph.schemas.trainer_config import Optimisation, TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import CorruptError, RetainedError
from freshet_graph.stream.store.exports import ExportReader, ExportWriter
from freshet_graph.stream.store.files.records import put_record, read_record
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.trainer.continual import daemon
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.exports.exporter import ExportGate, touched_nodes, version_of
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import batched_figures
from freshet_graph.trainer.session.session import Session


@KINDS
def test_embeddings_of_touched_nodes_have_the_producers_ids_times_and_the_weights_version(
    kind: dict, tmp_path: Path
) -> None:
    make_lane(tmp_path / "store", events=moved(meetings()))
    config = config_for(tmp_path, **kind)
    trainer = run(config)
    found = exports(config)
    assert [commit.sequence for commit in found.commits] == list(range(6))
    newest = found.commits[-1]
    table = found.table(newest, "embeddings")
    manifest = trainer.lane.manifests[-1]
    events = trainer.lane.log.events(manifest.tau)
    last_touch: dict[int, int] = {}
    for src, dst, t in zip(*(events[name].to_pylist() for name in ("src", "dst", "t")), strict=True):
        last_touch |= {end: max(t, last_touch.get(end, t)) for end in (src, dst) if end is not None}
    assert (
        dict(zip(table["id"].to_pylist(), table["t"].cast(pa.int64()).to_pylist(), strict=True)) == last_touch
    )
    assert min(table["id"].to_pylist()) >= 1000
    session = trainer.session
    assert set(table["model_version"].to_pylist()) == {newest.model_version} == {version_of(session.model)}
    expected = session.strategy.embeddings(table["node"].to_numpy()).numpy()
    assert np.array_equal(np.stack(table["embedding"].to_numpy()), expected)
    assert (newest.tau, newest.lane, newest.num_embeddings) == (manifest.tau, "hash", len(table))
    assert newest.time_us == max(t for t in last_touch.values())


def test_scores_have_event_ids_and_give_the_average_precision_that_the_run_tells(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=moved(meetings()))
    config = config_for(tmp_path)
    trainer = run(config)
    found, line = exports(config), ScoreFile(config.checkpoint).lines()[-1]
    commit = found.commits[-1]
    table = found.table(commit, "scores")
    events = trainer.lane.log.events(commit.tau)
    rows = events.take(table["row"])
    for name in ("event_id", "src", "dst"):
        assert table[name].to_pylist() == rows[name].to_pylist()
    assert set(rows["op"].to_pylist()) == {1}
    assert len(table) == commit.num_scores == line["scored"]
    assert table["event_id"].null_count == 0
    positive, negative = table["score"].to_numpy(), table["negative_score"].to_numpy()
    assert batched_figures(positive, negative)["ap"] == pytest.approx(line["ap"], abs=1e-9)
    versions = [one.model_version for one in found.commits]
    assert [one.scores_version for one in found.commits][1:] == versions[:-1]  # weights before learning


def test_an_event_without_a_possible_negative_is_exported_with_its_score_alone(tmp_path: Path) -> None:
    """In the first snapshot everybody meets the only destination; in the second node 1 meets both at once."""
    met = [(1, 7, 100_000), (2, 7, 200_000), (1, 7, 1_100_000), (1, 8, 1_100_000), (2, 8, 1_200_000)]
    rows = [{"op": 1, "src": u, "dst": v, "t": t, "weight": 1.0} for u, v, t in met]
    make_lane(tmp_path / "store", events=pa.Table.from_pylist(rows, event_schema("int")))
    config = config_for(tmp_path)
    run(config)
    tables = [exports(config).table(commit, "scores") for commit in exports(config).commits]
    assert [table["score"].null_count for table in tables] == [0, 0]
    assert [table["negative_score"].is_null().to_pylist() for table in tables] == [
        [True, True],
        [True, True, False],
    ]
    lines = ScoreFile(config.checkpoint).lines()
    assert [(line["scored"], line["excluded"]["no_negative"]) for line in lines] == [(2, 2), (3, 2)]
    assert [line["trained"] for line in lines] == [0, 1]
    assert "ap" not in lines[0]
    assert "ap" in lines[1]


@KINDS
def test_a_snapshot_that_touches_only_the_first_nodes_is_exported(kind: dict, tmp_path: Path) -> None:
    events = meetings(snapshots=3, features=False)
    newest = {
        "op": 1,
        "src": events["src"][0].as_py(),
        "dst": events["dst"][0].as_py(),
        "t": 3_500_000,
        "weight": 1.0,
    }
    make_lane(
        tmp_path / "store", events=pa.concat_tables([events, pa.Table.from_pylist([newest], events.schema)])
    )
    config = config_for(tmp_path, **kind)
    run(config)
    found = exports(config)
    assert found.table(found.commits[-1], "embeddings")["id"].to_pylist() == sorted(
        {newest["src"], newest["dst"]}
    )


def test_scores_of_events_are_exported_while_labels_are_asked_for(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, task="edge-classification")
    run(config)
    lines, found = ScoreFile(config.checkpoint).lines(), exports(config)
    assert [commit.num_scores for commit in found.commits] == [line["scored"] for line in lines]
    assert sum(line["scored"] for line in lines)


def test_a_run_that_goes_on_exports_each_snapshot_once(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, checkpoint_every=4)
    run(config, snapshots=6)  # the checkpoint is of the fourth: two snapshots are learned and exported again
    before = [commit.model_dump() for commit in exports(config).commits]
    with capture_logs() as logs:
        run(config)
        run(config_for(tmp_path, checkpoint=str(tmp_path / "other")))  # of the same seed
    assert [commit.model_dump() for commit in exports(config).commits] == before
    assert [commit["sequence"] for commit in before] == list(range(6))
    told = [entry for entry in logs if entry["event"].startswith("snapshots are exported already")]
    assert [(entry["exports"], entry["tau"]) for entry in told] == [("hash", 4), ("hash", 0)], (
        "once a trainer"
    )


def test_other_weights_for_an_old_snapshot_come_after_what_was_published(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    run(config_for(tmp_path))
    other = config_for(tmp_path, checkpoint=str(tmp_path / "other"), seed=1)
    run(other, snapshots=2)
    found = exports(other).commits
    assert [(commit.number, commit.sequence) for commit in found] == [
        *((number, number) for number in range(6)),
        (6, 0),
        (7, 1),
    ]
    assert found[6].model_version != found[0].model_version


def test_what_was_held_back_is_exported_with_the_next_and_both_log_and_metric_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, exports={**BOTH, "hold": {"below_recency": True}})
    judged = iter([None, "AP 0.6 is below", "AP 0.6 is below", None, None, None])
    monkeypatch.setattr(ExportGate, "check", lambda *_: next(judged))
    with capture_logs() as logs:
        trainer = run(config, snapshots=3)
        assert 'freshet_trainer_export_held{graph="meetings"} 1.0' in text_of(trainer)
        for manifest in trainer.lane.manifests[3:]:
            trainer.step(manifest)
    assert 'freshet_trainer_export_held{graph="meetings"} 0.0' in text_of(trainer)
    told = [entry["event"] for entry in logs if entry["event"].startswith("exports are")]
    assert told == [
        "exports are held back; what is touched meanwhile goes out with the next one that is let out",
        "exports are let out again",
    ]
    assert [line.get("held") for line in ScoreFile(config.checkpoint).lines()][:4] == [
        None, "AP 0.6 is below", "AP 0.6 is below", None,
    ]  # fmt: skip
    found = exports(config)
    assert [(commit.sequence, commit.after) for commit in found.commits] == [(0, -1), (3, 0), (4, 3), (5, 4)]
    meanwhile = touched_nodes(trainer.lane.log, trainer.lane.manifests[1:4])
    assert found.table(found.commits[1], "embeddings")["node"].to_pylist() == meanwhile.nodes.tolist()


def text_of(trainer: Trainer) -> str:
    return generate_latest(trainer.metrics.registry).decode()


def test_embeddings_that_are_no_numbers_are_held_back(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path)
    trainer = run(config, snapshots=1)
    whole = trainer.session.strategy.embeddings
    trainer.session.strategy.embeddings = lambda nodes: whole(nodes) * float("nan")
    trainer.step(trainer.lane.manifests[1])
    assert [commit.sequence for commit in exports(config).commits] == [0]
    assert ScoreFile(config.checkpoint).lines()[1]["held"] == "an embedding is not a number"
    assert len(list((tmp_path / "store/exports/hash/files").iterdir())) == 2


def test_two_ranks_export_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_lane(tmp_path / "store")
    one = config_for(tmp_path, exports={**BOTH, "name": "one"})
    two = config_for(tmp_path, exports={**BOTH, "name": "two"}, checkpoint=str(tmp_path / "two"))

    alone = threading.Lock()

    def drawn_alone(*arguments: Any) -> Session:
        with alone:  # weights are drawn from the process's generator, which the threads share
            return Session(*arguments)

    def work(ranks: Ranks) -> None:
        trainer = trainer_for(replace_learning(two), ranks)
        for manifest in trainer.lane.manifests[:2]:
            trainer.step(manifest)

    run(replace_learning(one), snapshots=2)
    monkeypatch.setattr(daemon, "Session", drawn_alone)
    side_by_side(2, work)
    for commit, other in zip(exports(one).commits, exports(two).commits, strict=True):
        for kind in ("embeddings", "scores"):
            ours, theirs = exports(one).table(commit, kind), exports(two).table(other, kind)
            assert ours.drop_columns(FLOATS[kind]).drop_columns(["model_version"]) == theirs.drop_columns(
                FLOATS[kind]
            ).drop_columns(["model_version"])
            for name in FLOATS[kind]:
                pairs = (np.stack(table[name].to_numpy()) for table in (ours, theirs))
                assert np.allclose(*pairs, atol=1e-4)


FLOATS = {"embeddings": ["embedding"], "scores": ["score", "negative_score"]}


def replace_learning(config: TrainerConfig) -> TrainerConfig:
    """Hardly any learning: steps of two ranks have other batches than those of one."""
    return config.model_copy(update={"optimisation": Optimisation(epochs=1, learning_rate=1e-9)})


def test_a_kill_at_any_point_leaves_an_export_whole_or_invisible(tmp_path: Path) -> None:
    job = Path(__file__).parents[3] / "support" / "export_job.py"
    done = warm_popen.run(["python", job, tmp_path / "store"], environment=os.environ, timeout_s=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for tau, (point, killed, seen) in enumerate(found["after_kill"]):
        assert killed, point
        there = point in ("record.linked", "record.named", "export.committed")
        assert seen == list(range(tau + 1 if there else tau)), point
    assert found["end"] == list(range(len(found["after_kill"])))
    assert found["files"] == 2 * len(found["end"])  # nothing that no record names


def exported(store: Path, count: int) -> ExportWriter:
    writer = ExportWriter(store, "lane")
    for _ in range(count):
        add(writer)
    return writer


def test_old_exports_go_but_not_those_that_a_topic_waits_for(tmp_path: Path) -> None:
    writer = exported(tmp_path, 6)
    reader = ExportReader(tmp_path, "lane")
    reader.mark_published("vectors", "embeddings", 2)
    assert writer.retain(3) == 2
    with pytest.raises(RetainedError, match="no longer kept"):
        reader.table(reader.commits[0], "embeddings")
    reader.mark_published("vectors", "embeddings", 6)
    assert writer.retain(3) == 1
    add(writer)
    later = ExportReader(tmp_path, "lane")
    assert (later.commits.first, len(later.commits)) == (3, 7)
    assert len(list((tmp_path / "exports/lane/files").iterdir())) == 4
    assert later.published("vectors", "embeddings") == 6
    assert later.published("other", "embeddings") == 3


def test_a_second_writer_under_one_name_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    writer = exported(tmp_path, 1)
    late = ExportWriter(tmp_path, "lane")
    with late.begin() as export:
        file = export.add("embeddings", lambda sink: sink.write(b"other"))
        add(writer)
        record = replace_number(writer.reader.commits[1], export.number, file)
        with pytest.raises(Failure, match=r"export 1 of .* was made by another trainer .* exports.name"):
            late.commit(export, record)
    reader = ExportReader(tmp_path, "lane")
    assert [reader.table(commit, "embeddings")["id"].to_pylist() for commit in reader.commits] == [[1, 2]] * 2


def test_two_writers_that_take_turns_are_one_too_many(tmp_path: Path) -> None:
    first = exported(tmp_path, 1)
    second = ExportWriter(tmp_path, "lane")
    add(first)
    with pytest.raises(Failure, match=r"export 1 of .* was made by another trainer .* exports.name"):
        second.begin()
    add(first)


def test_exports_of_another_lane_under_the_name_are_refused(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    run(config_for(tmp_path, exports={**BOTH, "name": "shared"}), snapshots=1)
    commit = tmp_path / "store" / "exports" / "shared" / "commits"
    record = read_record(next(commit.iterdir()), ExportCommit)
    put_record(next(commit.iterdir()), record.model_copy(update={"lane": "sep"}), replace=True)
    with pytest.raises(
        Failure, match=r"has exports of lane sep, this trainer's lane is hash\. .* exports.name"
    ):
        run(config_for(tmp_path, exports={**BOTH, "name": "shared"}), snapshots=2)


def replace_number(commit: ExportCommit, number: int, file: object) -> ExportCommit:
    return commit.model_copy(update={"number": number, "embeddings": file})


def test_verify_reads_exports(tmp_path: Path) -> None:
    make_lane(tmp_path)
    before = verify(tmp_path)
    writer = exported(tmp_path, 2)
    whole = verify(tmp_path)
    assert (whole.problems, whole.files - before.files) == ([], 4)
    file = writer.reader.root / writer.reader.commits[1].embeddings.path
    file.write_bytes(file.read_bytes()[:-9])
    assert [str(file) in problem for problem in verify(tmp_path).problems] == [True]


def test_a_reader_follows_and_tells_what_is_damaged(tmp_path: Path) -> None:
    writer = exported(tmp_path, 2)
    reader = ExportReader(tmp_path, "lane")
    seen = []
    for commit in reader.follow(0, timeout_s=5, stop=lambda: len(seen) == 20):
        seen.append(commit.number)
        if len(seen) < 20:
            add(writer)
    assert seen == list(range(20))
    file = tmp_path / "exports/lane" / reader.commits[3].embeddings.path
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptError, match="does not match the checksum"):
        reader.table(reader.commits[3], "embeddings")
    (tmp_path / "exports/lane/commits" / f"{4:016d}.json").unlink()
    with pytest.raises(CorruptError, match=r"0004\.json is missing, though later exports exist"):
        ExportReader(tmp_path, "lane")
