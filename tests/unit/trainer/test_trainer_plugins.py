"""Models, strategies and tasks of other distributions, as a user installs them; broken ones harm nobody."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from installed import install, look_again
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.models.interface import MODELS, ModelShape, create_model
from freshet_graph.trainer.models.sage_linear import SageLinear
from freshet_graph.trainer.strategies.interface import STRATEGIES, strategies_for
from freshet_graph.trainer.tasks.interface import TASKS

ROOT = Path(__file__).parents[3]

MODEL = '''
from pydantic import Field
from torch import nn
from freshet_graph.trainer.models.convolutions import Sage
from freshet_graph.trainer.models.interface import SnapshotModel, SnapshotModelOptions
from freshet_graph.trainer.models.recurrences import GatedConvolution

class TheirOptions(SnapshotModelOptions):
    wide: int = Field(4, ge=1, description="Width of the recurrence.")

class Theirs(SnapshotModel):
    """One convolution and one recurrence."""

    name = "theirs"
    Options = TheirOptions

    def __init__(self, shape, options) -> None:
        super().__init__(shape, options.model_copy(update={"hidden": options.wide}))
        self.layers = nn.ModuleList([Sage(self.inputs, self.width, None), GatedConvolution(self.width, self.width, shared=True)])
        self.decoder = shape.head(self.width, self.width, encounters=options.encounters)
'''

STRATEGY = '''
from dataclasses import replace
from freshet_graph.trainer.strategies.figures import TrainingFigure
from freshet_graph.trainer.strategies.snapshots.whole import WholeStrategy

class Twice(WholeStrategy):
    """Learns every snapshot twice."""

    name = "twice"
    figures = (TrainingFigure(name="times", meaning="How often", kind="counter", merge="sum"),)

    def learn(self, examples, epoch):
        super().learn(examples, epoch)
        return replace(super().learn(examples, epoch), figures={"times": 2})
'''

TASK = '''
from freshet_graph.trainer.tasks.node_regression import NodeRegression

class Theirs(NodeRegression):
    """Weighs errors otherwise."""

    name = "their-task"

    def loss(self, answers, truth):
        return 2 * super().loss(answers, truth)
'''

KINDS = {"models": MODELS, "strategies": STRATEGIES, "tasks": TASKS}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    for registry in KINDS.values():
        registry.all()  # modules register once
    kept = {name: dict(registry.registered) for name, registry in KINDS.items()}
    look_again()
    yield folder
    look_again()
    for name, registry in KINDS.items():
        registry.registered = kept[name]
    for name in [name for name in sys.modules if name.startswith(("their_", "bad_"))]:
        del sys.modules[name]


@pytest.fixture
def installed(site: Path) -> Path:
    """One of each kind, and one of each that cannot be used."""
    for group, source, name, target in (
        ("models", MODEL, "theirs", "Theirs"),
        ("strategies", STRATEGY, "twice", "Twice"),
        ("tasks", TASK, "their-task", "Theirs"),
    ):
        install(site, f"their-{group}", source, {name: f"their_{group}:{target}"}, group=f"freshet.{group}")
        install(site, f"bad-{group}", "X = 3\n", {f"bad-{name}": f"bad_{group}:X"}, group=f"freshet.{group}")
    return site


def trainer(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")}
    return subprocess.run(
        [sys.executable, "-m", "freshet_graph.trainer.cli", *arguments],
        env={**environment, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def printed(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_they_are_listed_and_train_as_those_of_the_tree_do(installed: Path, tmp_path: Path) -> None:
    listed = printed(trainer(installed, "models", "--json"))
    models = {entry["name"]: entry for entry in listed["models"]}
    assert models["theirs"]["params"] == {"hidden": 64, "signature": 32, "encounters": True, "wide": 4}
    assert models["theirs"]["summary"] == "One convolution and one recurrence."
    assert {"twice", "vertex", "whole"} <= set(models["theirs"]["strategies"])
    assert "twice" in models["tgcn"]["strategies"]
    (strategy,) = (entry for entry in listed["strategies"] if entry["name"] == "twice")
    assert "their-task" in strategy["tasks"]
    assert "their-task" in [entry["name"] for entry in listed["tasks"]]
    assert listed["broken"].keys() == {"bad-theirs", "bad-twice", "bad-their-task"}
    for name in ("bad-theirs", "bad-twice", "bad-their-task"):
        assert "cannot be loaded: TypeError" in listed["broken"][name]

    events = meetings(snapshots=4, a_snapshot=40)
    make_lane(tmp_path / "store", events=events)
    config = {
        "store": str(tmp_path / "store"), "lane": "hash", "model": "theirs", "strategy": "twice", "window": 2,
        "task": "their-task", "checkpoint": str(tmp_path / "checkpoints"), "metrics": {"port": 0}, "interval_s": 1.0,
        "model_params": {"wide": 8}, "optimisation": {"epochs": 1, "learning_rate": 0.01},
    }  # fmt: skip
    file = tmp_path / "trainer.yaml"
    file.write_text(yaml.safe_dump(config))
    ran = printed(trainer(installed, "run", "--config", str(file), "--until-idle", "0.1", "--json"))
    assert ran["snapshots"] == 4
    assert ran["mse"] > 0
    assert ran["age_persistence_mse"] > 0
    lines = (tmp_path / "checkpoints/scores.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["times"] for line in lines] == [2] * 4
    seconds = [t / SECOND for t in events["t"].to_pylist()]
    pq.write_table(
        events.select(["src", "dst", "op"]).append_column("t", [seconds]).slice(30), tmp_path / "e.parquet"
    )
    del config["store"]
    file.write_text(yaml.safe_dump(config))
    data = ["--data", str(tmp_path / "e.parquet"), "--split", "0.5,0.25,0.25"]
    told = printed(trainer(installed, "evaluate", "--config", str(file), *data, "--json"))
    assert (told["model"], told["strategy"]) == ("theirs", "twice")
    assert told["mse"] > 0
    assert told["training"]["times"] % 2 == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_one_is_named_when_asked_for_and_the_others_stay(kind: str, installed: Path) -> None:
    registry = KINDS[kind]
    (bad,) = registry.broken()
    assert bad not in registry.all()
    with pytest.raises(Failure, match=f"{bad} is not usable: entry point {bad} .* cannot be loaded"):
        registry.find(bad)
    with pytest.raises(Failure, match=rf"expected one of .*\(and, not usable, {bad}\)"):
        registry.find("nobody")


@pytest.mark.parametrize(
    ("kind", "members", "lacking"),
    [
        ("strategies", "trains = answers = Options = refuses = learn = None", "answer, close, embed_sources"),
        ("tasks", "subject = Options = examples = loss = evaluate = None", "baseline, forgot, head, join"),
    ],
)
def test_a_class_with_half_of_the_interface_is_broken_and_told_what_it_lacks(
    kind: str, members: str, lacking: str, site: Path
) -> None:
    install(
        site,
        f"bad-{kind}",
        f"class Half:\n    {members}\n",
        {"half": f"bad_{kind}:Half"},
        group=f"freshet.{kind}",
    )
    told = KINDS[kind].broken()["half"]
    assert f"has no {lacking}" in told
    assert "learner" not in told


@pytest.mark.parametrize(
    ("source", "lacking"),
    [
        (
            "from freshet_graph.trainer.strategies.snapshots.windowed import WindowedStrategy as Base\n"
            "class Half(Base):\n    name = 'half'\n    Options = refuses = None\n",
            "has no embeddings, held_bytes, learn, needs, owned, rewind, take_in: it is not a strategy",
        ),
        (
            "from freshet_graph.trainer.strategies.snapshots.whole import WholeStrategy as Base\n"
            "class Half(Base):\n    name = 'half'\n    Options = dict\n",
            "its Options are no Section",
        ),
    ],
)
def test_a_strategy_on_our_base_lacks_what_it_leaves_out_and_needs_a_section_of_options(
    source: str, lacking: str, site: Path
) -> None:
    install(site, "bad-half", source, {"half": "bad_half:Half"}, group="freshet.strategies")
    assert lacking in STRATEGIES.broken()["half"]


def test_a_model_whose_stages_are_none_is_refused_in_a_sentence(site: Path) -> None:
    source = MODEL.replace("name = ", "stages = property(lambda self: [self.decoder])\n    name = ")
    install(site, "bad-models", source, {"theirs": "bad_models:Theirs"}, group="freshet.models")
    with pytest.raises(
        Failure, match=r"^model theirs has a LinkDecoder among its stages, which is not a Stage$"
    ):
        create_model("theirs", ModelShape(0, 2), {})


def test_a_model_that_cannot_be_made_keeps_nobody_from_the_list(site: Path) -> None:
    source = MODEL.replace("super().__init__(", "raise KeyError(")
    install(site, "bad-models", source, {"theirs": "bad_models:Theirs"}, group="freshet.models")
    listed = printed(trainer(site, "models", "--json"))
    models = {entry["name"]: entry for entry in listed["models"]}
    assert models["theirs"]["strategies"] == []
    assert models["tgcn"]["strategies"] == ["group", "hybrid", "snapshot", "whole"]
    assert strategies_for("tgcn") == ["group", "hybrid", "snapshot", "whole"]


@pytest.mark.parametrize("decorated", [True, False])
def test_a_built_ins_name_stays_its_own(decorated: bool, site: Path) -> None:
    """Even where a module registers itself as those of the tree do."""
    source = MODEL.replace('name = "theirs"', 'name = "sage-linear"')
    if decorated:
        source = source.replace("import SnapshotModel", "import MODELS, SnapshotModel").replace(
            "class Theirs", "@MODELS.register\nclass Theirs"
        )
    entry = "theirs" if decorated else "sage-linear"
    install(site, "bad-models", source, {entry: "bad_models:Theirs"}, group="freshet.models")
    MODELS.all()
    assert MODELS.all()["sage-linear"] is SageLinear
    assert type(create_model("sage-linear", ModelShape(0, 2), {})) is SageLinear
    if decorated:
        assert "model sage-linear is registered already" in MODELS.broken()["theirs"]
