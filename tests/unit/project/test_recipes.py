"""The recipes of CONTRIBUTING, followed to the letter: each toy is written, named, and trained through the daemon."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import decoding
import offline_protocol
import pyarrow as pa
import pytest
import small_trainers
import streaming
from installed import install
from prometheus_client import generate_latest
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.decode.formats.interface import FORMATS
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.strategies.interface import STRATEGIES

ROOT = Path(__file__).parents[3]
RECIPES: dict[str, dict[str, Any]] = {
    "model": {"model": "toy-mean", "strategy": "whole"},
    "model without a memory": {"model": "toy-latest", "strategy": "sequential"},
    "strategy": {"model": "tgcn", "strategy": "toy-batches", "strategy_params": {"shuffle": False}},
    "task": {"model": "sage-linear", "strategy": "whole", "task": "toy-margin"},
}


def recipe(kind: str) -> tuple[str, str, list[str]]:
    """The module's path and source, and the two files that are there and have to be changed."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split(f"### Add a {kind}\n")[1].split("\n### ")[0]
    (source,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (module,) = re.findall(r"such as \*((?:stream|trainer)/[\w/]+\.py)\*", section)
    edited = re.findall(
        r"^\d\. (?:Name the module in|Give it a row in).*`([\w/]+\.\w+)`", section, re.MULTILINE
    )
    return module, source, edited


def tree_with(folder: Path, kind: str) -> Path:
    """The tree with the toy; whatever the recipe leaves alone is a link."""
    module, source, (registry, _) = recipe(kind)
    own = {folder / parent for path in (module, registry) for parent in Path(path).parents}
    for each in sorted(own):
        each.mkdir(exist_ok=True)
        for there in (ROOT / each.relative_to(folder)).iterdir():
            if each / there.name not in own and there.suffix in ("", ".py") and there.name[0] != ".":
                (each / there.name).symlink_to(there)
    package = folder / "freshet_graph"
    package.unlink()  # its links would lead to this tree
    package.mkdir()
    (package / "__init__.py").symlink_to(ROOT / "freshet_graph" / "__init__.py")
    for top in ("schemas", "stream", "trainer"):
        (package / top).symlink_to(folder / top)
    (folder / module).write_text(source, encoding="utf-8")
    text = (ROOT / registry).read_text(encoding="utf-8")
    (folder / registry).unlink()
    name = f"freshet_graph.{module.removesuffix('.py').replace('/', '.')}"
    known = re.compile(r"(\n    \(\s*)(\"freshet_graph\.trainer\.)")
    assert len(known.findall(text)) == 1
    (folder / registry).write_text(known.sub(rf'\1"{name}", \2', text), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", RECIPES)
def test_a_toy_is_a_module_of_under_100_lines_and_a_line_in_each_of_two_files(kind: str) -> None:
    module, source, edited = recipe(kind)
    assert not (ROOT / module).exists()
    assert len(source.splitlines()) + len(edited) < 100
    assert len(edited) == 2
    assert all((ROOT / path).exists() for path in edited)


def test_the_toy_strategy_of_another_package_shows_its_own_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    STRATEGIES.all()
    monkeypatch.setattr(STRATEGIES, "registered", dict(STRATEGIES.registered))
    (tmp_path / "their_toy.py").write_text(recipe("strategy")[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_toy", raising=False)
    assert import_module("their_toy").ToyBatches is STRATEGIES.find("toy-batches")
    make_lane(tmp_path / "store", events=meetings(snapshots=3))
    config = small_trainers.config_for(tmp_path, strategy="toy-batches")
    metrics = small_trainers.run(config).metrics
    lines = [line for line in ScoreFile(config.checkpoint).lines() if line["steps"]]
    assert [len(line["step_nodes"]) for line in lines] == [line["steps"] for line in lines]
    served = generate_latest(metrics.registry).decode()
    steps = sum(line["steps"] for line in lines)
    assert f'freshet_trainer_step_nodes_bucket{{graph="meetings",le="10000.0"}} {steps}.0' in served
    keys = {"model": "sage-linear", "model_params": {"hidden": 4}, "strategy": "toy-batches"}
    data = offline_protocol.write_events(tmp_path / "events.parquet")
    found = evaluate(offline_protocol.config_for(**keys), data, shares=offline_protocol.SHARES)
    assert found is not None
    assert found["training"]["step_nodes"] > 1


def test_the_toy_format_gives_back_what_it_writes_and_refuses_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FORMATS, "registered", dict(FORMATS.registered))
    (tmp_path / "their_format.py").write_text(recipe("message format")[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_format", raising=False)
    toy = decoding.message_format(import_module("their_format").ToySemicolons.name)
    row = {"op": 1, "src": 1, "dst": 2, "t": 1_100_000_000_250_000, "weight": 0.5}
    events = pa.RecordBatch.from_pylist([row], schema=event_schema("int"))
    ((message, _),) = toy.encode(events)
    assert message == b"1;2;1100000000.25;0.5"
    wrong = [b"1;2;x;1", b"1;2;3", b"\xff;1;2;3", b"%d;1;2;3" % 10**20]
    batch = decoding.decode(message, *wrong, topic={"format": toy.name})
    assert batch.events.select(events.schema.names).equals(events)
    assert decoding.reasons(batch) == ["not_four_values"] * len(wrong)
    mapped = {"src": "dst", "dst": "src", "t": "t"}
    batch = decoding.decode(message, topic={"format": toy.name, "fields": mapped})
    assert [batch.events[name].to_pylist() for name in ("src", "dst", "weight")] == [[2], [1], [1.0]]
    batch = decoding.decode(message, topic={"format": toy.name, "fields": {**mapped, "weight": "amount"}})
    assert decoding.reasons(batch) == ["missing_field"]
    for other in ({"op": -1}, {"label": 3}):
        with pytest.raises(Failure, match="has inserts with a weight only"):
            list(toy.encode(pa.RecordBatch.from_pylist([row | other], schema=events.schema)))


@pytest.mark.slow
@pytest.mark.integration
def test_the_toy_format_of_another_package_is_read_from_a_live_topic(kafka: str, tmp_path: Path) -> None:
    site, topic = tmp_path / "site", streaming.fresh_topic(kafka)
    site.mkdir()
    source = recipe("message format")[1]
    entry = {"toy-semicolons": "their_formats:ToySemicolons"}
    install(site, "their-formats", source, entry, group="freshet.formats")
    streaming.send(kafka, topic, [b"1;2;1100000000;3", b"1;2", b"2;3;1100000001;4"])
    content = streaming.configuration(tmp_path / "store", kafka, {"name": topic, "format": "toy-semicolons"})
    path = str(streaming.written(tmp_path, content))
    done = subprocess.run(
        [sys.executable, "-m", "freshet_graph.stream.start", "run", "--config", path, "--until-idle", "1", "--json"],
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["events"] == 2
    assert result["refused_by_reason"]["not_four_values"]["count"] == 1
    assert streaming.log_table(tmp_path / "store")["weight"].to_pylist() == [3.0, 4.0]
    assert "ignored" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECIPES)
def test_a_toy_is_trained_by_the_daemon(kind: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    tree_with(tree, kind)
    store = build_store(
        meetings(snapshots=3),
        tmp_path / "store",
        interval_us=SECOND,
        lanes=[Lane(name="hash", algorithm="hash", parts=1)],
        node_features=4,
    )
    config = tmp_path / "trainer.yaml"
    keys = {
        "store": str(store),
        "lane": "hash",
        "window": 2,
        "checkpoint": str(tmp_path / "checkpoints"),
        "device": "cpu",
        "metrics": {"port": 0},
        **RECIPES[kind],
    }
    config.write_text(json.dumps(keys), encoding="utf-8")
    learn = ("run", "--config", str(config), "--until-idle", "0", "--json")
    result, listed = run(tree, learn, ("models", "--json"))
    assert result["snapshots"] == 3
    assert result["steps"] > 0
    assert result["loss"] > 0
    registry = kind.split(maxsplit=1)[0]
    assert {each["name"]: each for each in listed[_plural(registry)]}[RECIPES[kind][registry]]["summary"]


def run(tree: Path, *commands: Sequence[str]) -> list[dict[str, Any]]:
    """Commands of the trainer with a tree's code, one after the other in one process; what each prints."""
    program = f"""
import sys
sys.path.insert(0, {str(tree)!r})
import freshet_graph.trainer.cli
assert freshet_graph.trainer.cli.__file__.startswith({str(tree)!r})
for sys.argv[1:] in {commands!r}:
    try:
        freshet_graph.trainer.cli.main()
    except SystemExit as ended:
        assert not ended.code
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False, cwd=tree
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _plural(kind: str) -> str:
    return "strategies" if kind == "strategy" else f"{kind}s"
