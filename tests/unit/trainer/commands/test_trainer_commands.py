"""The trainer's commands: their JSON, their exit codes, their sentences."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from structlog.testing import capture_logs
from trainer_invoked import RUNNER, _no_logs, invoke, write  # noqa: F401  a fixture
from trainer_streams import make_lane, meetings
from typer.testing import CliRunner

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.partition.interface import create
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.cli import app
from freshet_graph.trainer.evaluation.split import parse_shares, split_by_time
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.strategies.interface import STRATEGIES

RUN_KEYS = {"snapshots", "steps", "events", "loss", "ap", "auc", "mrr", "seconds", "checkpoint"}
EVALUATE_KEYS = {
    "model", "strategy", "ranks", "epochs", "ap", "auc", "mrr", "inductive_ap", "random_ap", "edgebank_ap",
    "edgebank_window_ap", "recency_ap", "recency_popularity_ap", "seeds", "epoch_s", "peak_mib", "rank_graph_bytes",
    "rank_mapped_bytes", "cut", "event_balance", "rank_events", "rank_cpu_s", "rank_memory_bytes",
}  # fmt: skip


@pytest.mark.usefixtures("clean_environment")
def test_run_prints_its_keys_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    file = write(tmp_path, store=str(tmp_path / "store"))
    code, first, _ = invoke("run", "--config", file, "--until-idle", "0.1")
    assert code == 0
    assert first.keys() >= RUN_KEYS
    assert first["snapshots"] == first["total_snapshots"] == 6
    assert first["events"] == 6 * 60 + 30  # and thirty node events
    assert first["checkpoint"] == str(tmp_path / "checkpoints" / f"{5:016d}.pt")
    code, second, _ = invoke("run", "--config", file, "--until-idle", "0.1")
    assert (code, second["snapshots"], second["total_snapshots"]) == (0, 0, 6)
    code, learned, _ = invoke("inspect", "--config", file)
    assert (code, learned) == (0, first)
    path = Path(first["checkpoint"])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for command in (("run", "--until-idle", "0.1"), ("export", "--out", str(tmp_path / "vectors.arrow"))):
        code, _, error = invoke(*command, "--config", file)
        assert (code, f"checkpoint {path} is damaged" in error) == (1, True), error


@pytest.mark.usefixtures("clean_environment")
def test_inspect_of_a_folder_without_a_run_says_what_to_do(tmp_path: Path) -> None:
    file = write(tmp_path, store=str(tmp_path / "store"))
    code, _, error = invoke("inspect", "--config", file)
    assert (code, "has no snapshot of a run. Start freshet-trainer run" in error) == (1, True), error


@pytest.mark.usefixtures("clean_environment")
def test_run_trains_by_pac_on_a_lane_of_two_passes_over_its_training_part(tmp_path: Path) -> None:
    two_pass = Lane(name="speed", algorithm="sep-two-pass", parts=2, params={"training_until": 2.5})
    build_store(meetings(features=False), tmp_path / "store", interval_us=US_PER_S, lanes=[two_pass])
    model = {"model": "tgn", "model_params": {"memory": 8, "time_width": 8}}
    file = write(tmp_path, store=str(tmp_path / "store"), lane="speed", strategy="pac", **model)
    code, result, error = invoke("run", "--config", file, "--until-idle", "0.1")
    assert (code, result.get("snapshots")) == (0, 6), error
    assert LaneReader(tmp_path / "store", "speed").header.algorithm == "sep-two-pass"


@pytest.mark.usefixtures("clean_environment")
def test_run_as_of_a_moment_learns_no_later_snapshot_and_can_go_on(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    file = write(tmp_path, store=str(tmp_path / "store"), lag={"max_snapshots": 1}, overload="skip-to-latest")
    code, past, _ = invoke(
        "run", "--config", file, "--as-of", "@3"
    )  # what happened by second 3: snapshots 0, 1, 2
    assert (code, past["last_tau"]) == (0, 2)
    assert past["checkpoint"] == str(tmp_path / "checkpoints" / f"{2:016d}.pt")
    code, again, _ = invoke("run", "--config", file, "--as-of", "2")
    assert (code, again["snapshots"]) == (0, 0)
    code, on, _ = invoke("run", "--config", file, "--as-of", "1970-01-01T01:00")  # all there is
    assert (code, on["last_tau"]) == (0, 5)
    code, _, error = invoke("run", "--config", file, "--as-of", "3")
    assert (code, "after number 3 of --as-of" in error) == (1, True)
    code, _, error = invoke("run", "--config", file, "--as-of", "-1")
    assert (code, "no snapshot as old as -1; it holds 0 to 5" in error) == (1, True)
    code, _, error = invoke("run", "--config", file, "--as-of", "yesterday")
    assert (code, "--as-of takes a snapshot" in error) == (1, True)


@pytest.mark.usefixtures("clean_environment")
def test_run_says_what_it_misses(tmp_path: Path) -> None:
    code, _, error = invoke("run", "--config", write(tmp_path), "--until-idle", "0.1")
    assert code == 1
    assert "key store is missing" in error
    file = write(tmp_path, store=str(tmp_path / "nowhere"))
    code, _, error = invoke("run", "--config", file, "--until-idle", "0.1")
    assert code == 1
    assert error.count(str(tmp_path / "nowhere")) == 1
    assert error.endswith(
        f"after 0.1 seconds still waiting for lane hash: {tmp_path}/nowhere/log/log.json does not exist. Check the store's path, "
        "or start the stream service with that lane\n"
    )
    make_lane(tmp_path / "store")
    file = write(tmp_path, store=str(tmp_path / "store"), lane="distdy")
    code, _, error = invoke("run", "--config", file, "--until-idle", "0.1")
    assert code == 1
    assert "has no lane 'distdy'. It has hash" in error
    code, _, error = invoke("run", "--config", write(tmp_path, colour="blue"))
    assert (code, "unknown key colour" in error) == (1, True)
    code, _, error = invoke("run", "--config", write(tmp_path, publish=[]))
    assert code == 1
    assert "unknown key publish. Did you mean publish of the stream's configuration?" in error


def event_file(folder: Path) -> str:
    events = meetings(snapshots=10, a_snapshot=60, features=False)
    seconds = [value // US_PER_S + 0.001 * (value % 997) for value in events["t"].to_pylist()]
    table = events.select(["src", "dst", "op"]).append_column("t", [seconds])
    pq.write_table(table, folder / "events.parquet")
    return str(folder / "events.parquet")


@pytest.mark.usefixtures("clean_environment")
def test_evaluate_prints_its_keys_with_means_and_spread_over_seeds(tmp_path: Path) -> None:
    file = write(tmp_path, interval_s=1.0, optimisation={"epochs": 2, "batch_size": 32})
    code, result, _ = invoke("evaluate", "--config", file, "--data", event_file(tmp_path), "--seeds", "2")
    assert code == 0
    assert result.keys() >= EVALUATE_KEYS - {"inductive_ap"}  # thirty nodes: none is new in the test
    assert (result["model"], result["strategy"], result["seeds"]) == ("sage-linear", "vertex", 2)
    assert (result["ranks"], result["parts"], result["epochs"], result["snapshots"]) == (1, 1, 2, 10)
    runs = [run["ap"] for run in result["runs"]]
    assert result["ap"] == pytest.approx(sum(runs) / 2)
    assert result["ap_spread"] == pytest.approx(abs(runs[0] - runs[1]) / 2**0.5)
    assert not list(tmp_path.glob("freshet-*"))


@pytest.mark.usefixtures("clean_environment")
def test_a_table_of_evaluate_has_figures_and_their_deviation_in_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {"model": "tgn", "ap": 0.90412, "ap_spread": 0.000653, "mse": 0.008041, "seeds": 2, "runs": []}
    monkeypatch.setattr("freshet_graph.trainer.commands.evaluate._evaluate", lambda *_: result)
    file = write(tmp_path, interval_s=1.0)
    done = CliRunner().invoke(app, ["evaluate", "--config", file, "--data", "events.csv"])
    rows = [line.strip("│ ").split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    assert {key.strip(): value.strip() for key, value in rows} == {
        "model": "tgn",
        "ap": "0.9041 ± 0.00065",
        "mse": "0.008041",
        "seeds": "2",
    }


@pytest.mark.usefixtures("clean_environment")
def test_evaluate_takes_a_store_as_of_a_moment(tmp_path: Path) -> None:
    """A store up to a moment gives the figures of one that never had more; the interval is the store's."""
    events = meetings(snapshots=12, features=False)
    make_lane(tmp_path / "store", events=events)
    early = events.filter(pa.array(events["t"].to_numpy() < 9 * US_PER_S))
    make_lane(tmp_path / "early", events=early)
    file = write(tmp_path, optimisation={"epochs": 1, "batch_size": 32})
    found = {}
    for name, extra in (("store", []), ("store", ["--as-of", "8"]), ("early", [])):
        code, found[name, *extra], _ = invoke(
            "evaluate", "--config", file, "--data", str(tmp_path / name), *extra
        )
        assert code == 0
    whole, past, wanted = found.values()
    assert (whole["snapshots"], past["snapshots"]) == (12, 9)
    for key in ("ap", "mrr", "edgebank_ap", "events", "snapshots"):
        assert past[key] == wanted[key] != whole[key]
    code, _, error = invoke("evaluate", "--config", file, "--data", str(tmp_path / "store"), "--as-of", "-5")
    assert (code, "no snapshot as old as -5; it holds 0 to 11" in error) == (1, True)
    code, _, error = invoke("evaluate", "--config", file, "--data", event_file(tmp_path), "--as-of", "5")
    assert (code, "is not a store, so it has no moment " in error) == (1, True)


@pytest.mark.parametrize(
    ("keys", "extra", "sentence"),
    [
        ({"lane": "metisse"}, [], "unknown partitioner 'metisse'; expected one of"),
        ({"lane": "sep"}, [], "an edge partitioner. Name a vertex lane"),
        (
            {"lane": "sep-two-pass", "lane_params": {"training_until": 3}},
            [],
            "key lane: training_until of sep-two-pass follows from the split. Leave it out",
        ),
        ({}, ["--split", "0.5,0.5"], "--split must be three numbers like 0.7,0.15,0.15, found '0.5,0.5'"),
        ({}, ["--split", "0.5,0.5,0.5"], "add up to 1"),
        ({}, ["--split", "nan,0.5,0.5"], "add up to 1"),
    ],
)
@pytest.mark.usefixtures("clean_environment")
def test_evaluate_refuses_in_a_sentence(keys: dict, extra: list[str], sentence: str, tmp_path: Path) -> None:
    file = write(tmp_path, **keys)
    code, _, error = invoke("evaluate", "--config", file, "--data", event_file(tmp_path), *extra)
    assert code == 1
    assert sentence in error
    assert "Traceback" not in error


EVENTS = {"model": "tgn", "strategy": "sequential"}
UNWORKABLE = [
    ({"model": "tgm"}, ".yaml: key model: unknown model 'tgm'; expected one of cdgcn, dcrnn,", "Did you mean tgn?"),
    ({"strategy": "vertx"}, ".yaml: key strategy: unknown strategy 'vertx'; expected one of", "Did you mean vertex?"),
    ({"strategy": "pac"}, "strategy pac trains event models, and sage-linear is among the snapshot models", "or whole"),
    ({"model_params": {"hiden": 8}}, "model_params of sage-linear: unknown key hiden", "Did you mean hidden?"),
    ({"model_params": {"hidden": "8"}}, "model_params of sage-linear: hidden: must be a whole number", ""),
    ({**EVENTS, "model_params": {"memory": 0}}, "memory: must be at least 1, found 0", ""),
    ({"strategy_params": {"inference_node": 8}}, "strategy_params of vertex", "Did you mean inference_nodes?"),
    ({"strategy_params": {"inference_nodes": 0}}, "inference_nodes: must be at least 1, found 0", ""),
    ({"task": "node-regresion"}, ".yaml: key task: unknown task 'node-regresion'; expected one of", "node-regression?"),
    ({**EVENTS, "model_params": {}, "task": "node-regression"}, "about nodes, which strategy sequential does not answer", ""),
    ({"optimisation": {"replay": {"ratio": 1}}}, "strategy vertex does not support replay", ""),
    ({"budget": {"nodes": 8}}, "key budget bounds what event models remember", ""),
]  # fmt: skip


@pytest.mark.parametrize("command", ["config", "run", "evaluate"])
@pytest.mark.parametrize(("keys", "sentence", "meant"), UNWORKABLE)
@pytest.mark.usefixtures("clean_environment")
def test_what_cannot_work_is_refused_before_a_rank_starts_or_a_store_is_waited_for(
    command: str, keys: dict, sentence: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr("freshet_graph.trainer.commands.ranks.launch", started)
    file = write(tmp_path, store=str(tmp_path / "nowhere"), **keys)
    arguments = {"config": [], "run": ["--ranks", "2"], "evaluate": ["--data", "nowhere", "--ranks", "2"]}[
        command
    ]
    code, _, error = invoke(command, "--config", file, *arguments)
    assert code == 1
    assert sentence in error
    assert error.rstrip().endswith(meant)
    assert "Traceback" not in error


@pytest.mark.usefixtures("clean_environment")
def test_the_lane_of_a_configuration_without_a_store_is_a_partitioner(tmp_path: Path) -> None:
    code, _, error = invoke("config", "--config", write(tmp_path, lane="distdi"))
    assert (code, "key lane: unknown partitioner 'distdi'" in error) == (1, True)
    assert error.rstrip().endswith("Did you mean distdy?")
    code, _, error = invoke("config", "--config", write(tmp_path, lane_params={"depth": 3}))
    assert (code, "key lane: params of hash: unknown key depth" in error) == (1, True)
    assert invoke("config", "--config", write(tmp_path, lane="any-name", store="./store"))[0] == 0


EVENT_MODEL = {
    "model": "tige",
    "strategy": "sequential",
    "model_params": {"memory": 8, "time_width": 8},
    "optimisation": {"epochs": 1, "batch_size": 50},
    "interval_s": 1.0,
}


@pytest.mark.usefixtures("clean_environment")
def test_what_is_wrong_with_the_configuration_is_told_before_the_file_is_read(tmp_path: Path) -> None:
    file = write(tmp_path, **{**EVENT_MODEL, "model_params": {"memory": 0}})
    code, _, error = invoke("evaluate", "--config", file, "--data", str(tmp_path / "there is none.parquet"))
    assert (code, "memory: must be at least 1, found 0" in error) == (1, True)


@pytest.mark.usefixtures("clean_environment")
def test_what_cannot_be_computed_is_absent_and_the_reason_is_told(tmp_path: Path) -> None:
    """One destination: there is nothing that did not happen."""
    file, data = write(tmp_path, **EVENT_MODEL), tmp_path / "one.parquet"
    pq.write_table(pa.table({"src": [1, 2, 3] * 20, "dst": [0] * 60, "t": [*range(60)]}), data)
    with capture_logs() as logs:
        code, result, _ = invoke("evaluate", "--config", file, "--data", str(data))
    assert code == 0
    assert not {"ap", "mrr", "recency_ap"} & result.keys()
    assert "validation_ap" not in result["runs"][0]
    assert any("no score, because there are no negatives" in line["event"] for line in logs)


@pytest.mark.usefixtures("clean_environment")
def test_compilation_is_not_part_of_an_epoch_and_warming_up_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = write(tmp_path, **EVENT_MODEL), event_file(tmp_path)
    _, warm, _ = invoke("evaluate", "--config", file, "--data", data)
    monkeypatch.setattr("freshet_graph.trainer.evaluation.evaluate._Run._warm_up", lambda _: None)
    _, cold, _ = invoke("evaluate", "--config", file, "--data", data)
    clock = ("epoch_s", "train_s", "wait_s", "rank_cpu_s", "peak_mib", "runs")
    assert {key: warm[key] for key in warm if key not in clock} == {
        key: cold[key] for key in cold if key not in clock
    }


@pytest.mark.usefixtures("clean_environment")
def test_models_lists_what_goes_together() -> None:
    code, listed, _ = invoke("models")
    assert code == 0
    model = next(entry for entry in listed["models"] if entry["name"] == "sage-linear")
    assert model["strategies"] == ["group", "hybrid", "snapshot", "vertex", "whole"]
    assert model["params"]["hidden"] == 128
    assert "vertex" in RUNNER.invoke(app, ["models"]).stdout


@pytest.mark.usefixtures("clean_environment")
def test_models_with_a_name_shows_each_parameter_of_a_strategy_with_meaning_bounds_and_default() -> None:
    shown = " ".join(RUNNER.invoke(app, ["models", "vertex"]).stdout.split())
    for name, field in STRATEGIES.find("vertex").Options.model_fields.items():
        assert f"{' '.join((field.description or '').split())}" in shown
        assert f"# {name}: {field.default}" in shown
    assert "(≥ 1) # inference_nodes: 65536" in shown
    assert "tgcn" not in shown
    refused = RUNNER.invoke(app, ["models", "vertx"])
    assert refused.exit_code == 1
    assert "there is no model, strategy, task or tracker 'vertx'. Did you mean vertex?" in refused.stderr


def test_the_documentation_has_every_parameter_of_every_strategy_and_the_tables_their_defaults() -> None:
    docs = Path(__file__).parents[4] / "docs"
    text = "".join((docs / page).read_text("utf-8") for page in ("strategies.md", "models.md"))
    named = set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`]*`", text, re.DOTALL))))
    for name, strategy in STRATEGIES.registered.items():
        assert set(strategy.Options.model_fields) <= named, name
    for name, heading in (("group", "Snapshot groups"), ("hybrid", "Hybrid batches")):
        section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        rows = re.findall(
            r"^\| `(\w+)` \| `?(.*?)`? \|", section.split("`strategy_params` | default |")[1], re.MULTILINE
        )
        shown = {key: yaml.safe_load(re.sub(r"(?<=\d),(?=\d{3})", "", default)) for key, default in rows}
        assert shown == {
            key: field.default for key, field in STRATEGIES.find(name).Options.model_fields.items()
        }


@pytest.mark.usefixtures("clean_environment")
def test_the_example_configuration_is_valid(tmp_path: Path) -> None:
    text = RUNNER.invoke(app, ["config", "--example"]).stdout
    (tmp_path / "example.yaml").write_text(text, encoding="utf-8")
    code, in_force, _ = invoke("config", "--config", str(tmp_path / "example.yaml"))
    assert code == 0
    assert {key: in_force[key] for key in ("lane", "model", "strategy")} == {
        "lane": "sep",
        "model": "tgn-history",
        "strategy": "sequential",
    }


def test_the_parameters_that_the_example_shows_are_those_of_the_default_model_and_lane() -> None:
    fields = TrainerConfig.model_fields

    def shown(key: str) -> dict[str, Any]:
        found = re.search(r"\{.*\}", fields[key].description or "")
        assert found is not None
        return yaml.safe_load(found[0])  # type: ignore[no-any-return]

    MODELS.options(fields["model"].default, shown("model_params"))
    create(fields["lane"].default, shown("lane_params"), parts=2)


def test_starting_the_trainer_imports_neither_dgl_nor_torch() -> None:
    """Nor does an example of its configuration, which needs no list of models."""
    script = (
        "import sys, freshet_graph.trainer.cli; sys.argv = ['freshet-trainer', 'config', '--example']\n"
        "try: freshet_graph.trainer.cli.main()\n"
        "except SystemExit: print({'dgl', 'torch'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "set()"


def test_training_never_imports_dgl() -> None:
    script = (
        "import sys, freshet_graph.trainer.service, freshet_graph.trainer.evaluation.evaluate\n"
        "from freshet_graph.trainer.models.interface import MODELS\n"
        "MODELS.all(); print('dgl' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_splits_keep_equal_times_together() -> None:
    import numpy as np

    t = np.array([0, 1, 1, 1, 2, 3, 3, 4, 5, 6])
    split = split_by_time(t, parse_shares("0.5,0.2,0.3"))
    parts = [t[part(t)].tolist() for part in (split.train, split.validate, split.test)]
    assert parts == [[0, 1, 1, 1, 2], [3, 3], [4, 5, 6]]
    with pytest.raises(Failure, match="all 3 insert events have the same time"):
        split_by_time(np.ones(3, np.int64), parse_shares("0.5,0.2,0.3"))
