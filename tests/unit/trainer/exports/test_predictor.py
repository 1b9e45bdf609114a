"""A checkpoint in use: the embeddings and scores that training itself would make, beside a trainer at work."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from exporting_trainers import EVENT_MODEL, KINDS, config_for, exports, moved
from small_trainers import run
from structlog.testing import capture_logs
from trainer_streams import make_lane, meetings
from typer.testing import CliRunner

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.cli import app
from freshet_graph.trainer.data.history import History, Inserts
from freshet_graph.trainer.exports.embeddings import load_embeddings, load_scores
from freshet_graph.trainer.exports.predictor import Predictor

DOCS = Path(__file__).parents[4] / "docs"


@KINDS
def test_a_candidate_is_scored_as_the_trainer_scores_the_next_event(kind: dict, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=moved(meetings()))
    config = config_for(tmp_path, **kind)
    trainer = run(config, snapshots=5)
    predictor = Predictor(config)
    trainer.step(trainer.lane.manifests[5])
    next_ones = exports(config).table(exports(config).commits[-1], "scores")
    src, dst, t, score = (next_ones[name][0].as_py() for name in ("src", "dst", "t", "score"))
    first = t.timestamp()
    ((candidate, found),) = predictor.rank(src, [dst], t=first)
    assert candidate == dst
    assert found == pytest.approx(score, abs=1e-5)
    assert predictor.rank(src, [dst], t=first)[0][1] == found  # asking changes nothing


@KINDS
def test_ranks_are_in_order_and_embeddings_are_those_of_the_newest_export(kind: dict, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=moved(meetings()))
    config = config_for(tmp_path, **kind)
    trainer = run(config)
    predictor = Predictor(config)
    vectors = load_embeddings(config.store, "hash")
    assert sorted(vectors["id"].to_pylist()) == sorted(trainer.lane.log.external_ids().to_pylist())
    newest = exports(config).table(exports(config).commits[-1], "embeddings")
    found = predictor.embeddings(newest["id"].to_pylist())
    assert np.array_equal(np.stack(found["embedding"].to_numpy()), np.stack(newest["embedding"].to_numpy()))
    assert set(found["model_version"].to_pylist()) == {exports(config).commits[-1].model_version}
    every = predictor.rank(1001, vectors["id"], top=100)
    assert len(every) == len(vectors)
    scores = [score for _, score in every]
    assert scores == sorted(scores, reverse=True)
    assert predictor.rank(1001, vectors["id"], top=3) == every[:3]
    assert len(predictor.embeddings()) == len(vectors)


def test_a_predictor_writes_nothing_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=moved(meetings()))
    config = config_for(tmp_path, checkpoint_every=2, **EVENT_MODEL)
    with pytest.raises(Failure, match=r"has no checkpoint. Train with freshet-trainer run first"):
        Predictor(config)
    run(config, snapshots=3)  # the third snapshot's line stands, its checkpoint doesn't
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    predictor = Predictor(config)
    assert predictor.sequence == 1
    predictor.rank(1001, [1002])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    unknown = (
        r"node 5 is unknown to the checkpoint \S+: no event up to its snapshot has it, or it was forgotten\. "
    )
    with pytest.raises(Failure, match=f"{unknown}Leave it out$"):
        predictor.rank(1001, [1002, 5])
    with pytest.raises(Failure, match=f"{unknown}Ask about another node, or a newer checkpoint"):
        predictor.rank(5, [1002])
    newest_s = predictor._lane.log.snapshots[1].max_t_us / 1e6
    assert predictor.rank(1001, [1002], t=newest_s) == predictor.rank(1001, [1002])
    early = (
        r"t is 1970-01-01T00:00:00\.500000Z, before 1970-01-01T00:00:0\S+Z, the newest event .* Leave t out"
    )
    with pytest.raises(Failure, match=early):
        predictor.rank(1001, [1002], t=0.5)
    later = 2**31 - 1
    for t in (np.int32(later), np.uint32(later), np.int64(later), np.float64(later), Fraction(later)):
        assert predictor.rank(1001, [1002], t=t) == predictor.rank(1001, [1002], t=later)
    assert predictor.rank(1001, [1002], t=later) != predictor.rank(1001, [1002])
    for t in (float("nan"), float("inf"), 1e18, 10**5000, -(10**5000), np.float16("inf"), "2024-01-01", 1j):
        with pytest.raises(Failure, match="t is seconds since 1970"):
            predictor.rank(1001, [1002], t=t)
    for top in (0, 2.5):
        with pytest.raises(Failure, match=f"top must be a whole number of at least 1, found {top}"):
            predictor.rank(1001, [1002], top=top)
    for nodes in (["a"], [10**30], [[1001]], [{"id": 1001}], 1001, np.array([[1001]])):
        with pytest.raises(Failure, match="nodes of this store have int64 ids, but others were given"):
            predictor.embeddings(nodes)
        with pytest.raises(Failure, match="nodes of this store have int64 ids, but others were given"):
            predictor.rank(1001, nodes)
    with pytest.raises(Failure, match="nodes of this store have int64 ids, but others were given"):
        predictor.rank(10**30, [1002])
    with pytest.raises(Failure, match=r"ids are a list, found the text '1001'\. Write \['1001'\]"):
        predictor.embeddings("1001")
    with pytest.raises(Failure, match="prefix is for string ids, and nodes of this store have int64 ids"):
        predictor.rank(1001, prefix="10")
    with pytest.raises(Failure, match="was made with seed = 0, the configuration has 1"):
        Predictor(config.model_copy(update={"seed": 1}))
    with pytest.raises(Failure, match=r"no embeddings\. Set exports"):
        load_embeddings(config.store, "nothing")


@KINDS
def test_eight_threads_are_answered_as_one(kind: dict, tmp_path: Path) -> None:
    """A model's memory, neighbours and history are looked at through states that an answer changes and puts back."""
    make_lane(tmp_path / "store", events=moved(meetings()))
    config = config_for(tmp_path, **kind)
    everyone = run(config).lane.log.external_ids().to_pylist()
    predictor = Predictor(config)

    def asked(round_: int) -> tuple:
        node = everyone[round_ % len(everyone)]
        vectors = predictor.embeddings(everyone[round_ % 7 :: 3])["embedding"].to_pylist()
        return predictor.rank(node, everyone[::2], top=100), vectors

    alone = [asked(round_) for round_ in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(asked, range(40))) == alone
    assert [asked(round_) for round_ in range(5)] == alone[:5]


def test_candidates_may_come_from_a_generator_a_set_or_an_array(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=moved(meetings()))
    trainer = run(config_for(tmp_path), snapshots=2)
    predictor = Predictor(trainer.config)
    nodes = trainer.lane.log.external_ids().to_pylist()[:6]
    expected = predictor.rank(nodes[0], nodes)
    for given in (
        iter(nodes),
        set(nodes),
        dict.fromkeys(nodes),
        np.array(nodes),
        pa.array(nodes),
        tuple(nodes),
    ):
        assert sorted(predictor.rank(nodes[0], given)) == sorted(expected)
    assert predictor.rank(nodes[0], []) == []
    assert len(predictor.embeddings(node for node in nodes)) == len(nodes)


def without(*path: str) -> Callable[[dict], None]:
    def change(state: dict) -> None:
        for key in path[:-1]:
            state = state[key]
        del state[path[-1]]

    change.__name__ = "without-" + "-".join(path)
    return change


def wider(state: dict) -> None:
    name = next(iter(state["model"]))
    state["model"][name] = torch.cat([state["model"][name]] * 2)


@pytest.mark.parametrize(
    "change",
    [wider, without("model"), without("strategy"), without("names"), without("names", "seen"), without("history"),
     without("log_events_checksum"), lambda state: state.update(identity="tgn")],
)  # fmt: skip
def test_a_checkpoint_with_other_content_is_named(change: Callable[[dict], None], tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=moved(meetings()))
    config = config_for(tmp_path)
    run(config, snapshots=1)
    (path,) = (tmp_path / "checkpoints").glob("*.pt")
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)
    for reader in (Predictor, run):
        with pytest.raises(
            FreshetError, match=f"checkpoint {path} has other content .* Remove it to continue"
        ):
            reader(config)


def paying(**more: int) -> pa.Table:
    """``meetings()`` as payments: the first half of the nodes are cards, the others merchants."""
    events = meetings(features=False, **more)
    for column, kind in (("src", "card"), ("dst", "merchant")):
        at = events.schema.get_field_index(column)
        named = [f"{kind}:{node % 15 + (15 if kind == 'card' else 0)}" for node in events[column].to_pylist()]
        events = events.set_column(at, pa.field(column, pa.string()), pa.array(named))
    return events


@KINDS
def test_candidates_are_a_list_or_a_prefix(kind: dict, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=paying())
    config = config_for(tmp_path, **kind)
    trainer = run(config)
    predictor = Predictor(config)
    everyone = trainer.lane.log.external_ids().to_pylist()
    merchants = [node for node in everyone if node.startswith("merchant:")]
    assert 0 < len(merchants) < len(everyone)
    found = predictor.rank("card:17", prefix="merchant:", top=100)
    assert found == predictor.rank("card:17", merchants, top=100)
    assert sorted(node for node, _ in found) == sorted(merchants)
    assert predictor.rank("card:17", prefix="merchant:", top=3) == found[:3]
    with pytest.raises(
        Failure, match=r"knows no node whose id begins with 'shop:'\. Ids look like '(card|merch)"
    ):
        predictor.rank("card:17", prefix="shop:")
    with pytest.raises(Failure, match=r"node shop:9 is unknown .*\. Leave it out, or ask with prefix="):
        predictor.rank("card:17", ["shop:9"])
    for wrong in ({}, {"candidates": merchants, "prefix": "merchant:"}):
        with pytest.raises(Failure, match="either candidates, a list of ids, or prefix"):
            predictor.rank("card:17", **wrong)


def test_a_prefix_leaves_out_who_was_forgotten(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=paying(a_snapshot=12))  # few enough to forget those of the others
    trainer = run(config_for(tmp_path, **{**EVENT_MODEL, "budget": {"nodes": 12}}))
    predictor = Predictor(trainer.config)
    everyone = trainer.lane.log.external_ids()
    known = everyone.take(
        pa.array(trainer.session.names.ids(np.arange(len(trainer.session.names))))
    ).to_pylist()
    merchants = [node for node in known if node.startswith("merchant:")]
    card = next(node for node in known if node.startswith("card:"))
    assert 0 < len(merchants) < sum(node.startswith("merchant:") for node in everyone.to_pylist())
    assert {node for node, _ in predictor.rank(card, prefix="merchant:", top=100)} == set(merchants)


def test_history_is_looked_at_without_being_changed() -> None:
    rng = np.random.default_rng(0)
    events = Inserts(
        rng.integers(0, 6, 50),
        rng.integers(0, 6, 50),
        np.sort(rng.integers(0, 99, 50)),
        np.zeros(50, np.bool_),
    )
    one, other = History(), History()
    one.remember(events, 6)
    other.remember(events, 6)
    src, dst = rng.integers(0, 9, 20), rng.integers(0, 9, 20)
    later = Inserts(np.array([0]), np.array([1]), np.array([500]), np.array([False]))
    found = one.look(src, dst, 500)
    assert np.array_equal(found, other.replay(later, 9, np.zeros(20, np.int64), src, dst))
    assert np.array_equal(found, one.look(src, dst, 500))


def test_the_command_exports_all_or_given_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshet_graph.trainer.commands.export.configure_logs", lambda **_: None)
    make_lane(tmp_path / "store", events=moved(meetings()))
    config = config_for(tmp_path, **EVENT_MODEL)
    run(config)
    file = tmp_path / "trainer.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")

    def command(*arguments: str) -> tuple[int, dict, str]:
        done = CliRunner().invoke(app, ["export", "--config", str(file), *arguments, "--json"])
        return done.exit_code, json.loads(done.stdout) if done.exit_code == 0 else {}, done.stderr

    with capture_logs():
        code, told, _ = command("--out", str(tmp_path / "all.parquet"))
        assert (code, told["nodes"], told["width"], told["sequence"]) == (0, 30, 8, 5)
        table = pq.read_table(tmp_path / "all.parquet")
        assert table["id"].to_pylist() == Predictor(config).embeddings()["id"].to_pylist()
        (tmp_path / "nodes").write_text("1007\n1003\n")
        code, told, _ = command("--out", str(tmp_path / "two.arrow"), "--nodes-file", str(tmp_path / "nodes"))
        with pa.ipc.open_file(str(tmp_path / "two.arrow")) as two:
            assert two.read_all()["id"].to_pylist() == [1007, 1003]
        assert command("--out", str(tmp_path / "x.arrow"), "--nodes", "1, 2")[0] == 1
        assert "must end in .arrow or .parquet" in command("--out", str(tmp_path / "x.csv"))[2]
    assert not (tmp_path / "x.arrow").exists()


def test_the_five_lines_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_lane(tmp_path / "store", events=paying())
    exported = {"embeddings": True, "name": "sep"}  # the lane of the example configuration
    config = config_for(tmp_path, exports=exported, **EVENT_MODEL)
    run(config)
    (tmp_path / "trainer.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    page = (DOCS / "exports.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    lines = [line for line in program.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 5
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(compile(program, "exports.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 10
    assert all(line.startswith("merchant:") for line in printed)


def test_scores_of_all_exports_are_a_table_that_duckdb_reads_as_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store", events=moved(meetings(snapshots=14)))
    config = config_for(tmp_path, **EVENT_MODEL)
    run(config)
    scores = load_scores(config.store, "hash")
    commits = list(exports(config).commits)
    assert [tau for tau, _ in groupby(scores["tau"].to_pylist())] == sorted({one.tau for one in commits})
    for commit in commits:
        exported = exports(config).table(commit, "scores")
        loaded = scores.filter(pc.equal(scores["tau"], commit.tau)).drop_columns(["tau"])
        assert loaded.to_pylist() == exported.to_pylist()

    (tmp_path / "store" / "exports" / "sep").symlink_to(tmp_path / "store" / "exports" / "hash")
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "exports.md").read_text(encoding="utf-8")
    in_python = re.search(r"```python\n(import duckdb\n.*?)```", page, re.DOTALL)
    in_shell = re.search(r"^python -c '(import duckdb.*)'$", page, re.MULTILINE)
    newest = scores.filter(pc.greater(scores["tau"], pc.max(scores["tau"]).as_py() - 12))
    all_within_the_hour = scores
    for program, chosen in ((in_python, newest), (in_shell, all_within_the_hour)):
        shown: list[Any] = []
        exec(program[1], {"print": lambda relation, shown=shown: shown.extend(relation.fetchall())})
        assert [row[-1] for row in shown] == sorted(chosen["score"].to_pylist())[:20]
    with_labels = re.search(
        r"```python\n(from freshet_graph import load_scores, open_store\n.*?)```", page, re.DOTALL
    )
    tables: list[Any] = []
    exec(with_labels[1], {"print": tables.append})
    assert tables[0].column_names[-3:] == ["label", "label_visible", "label_source"]
    with pytest.raises(Failure, match=r"no scores\. Set exports"):
        load_scores(config.store, "nothing")
