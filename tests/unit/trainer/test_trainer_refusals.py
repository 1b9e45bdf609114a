"""Wrong values in the trainer's keys, and streams with nothing to learn: a sentence or a result, never a traceback."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trainer_invoked import _no_logs, invoke, write  # noqa: F401  a fixture
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.models.sage_linear import SageLinear
from freshet_graph.trainer.session.checkpoint import identity

WHOLE = {"model": "tgcn", "strategy": "whole", "model_params": {"hidden": 4, "signature": 4}}
VERTEX = {"model": "sage-linear", "strategy": "vertex", "model_params": {"hidden": 4, "signature": 4}}


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"model_params": {"hidden": 10**12}}, "hidden: must be at most 4096, found 1000000000000"),
        ({**WHOLE, "model_params": {"layers": 10**9}}, "layers: must be at most 16, found 1000000000"),
        ({"window": 10**20}, "window: must be at most 1000, found 100000000000000000000"),
        ({"task": "node-regression", "task_params": "in_degree"}, "task_params: must be a section of keys and values"),
        ({"strategy_params": [1]}, "strategy_params: must be a section of keys and values"),
        (
            {"task": "node-regression", "task_params": {"next": "feature"}},
            "task_params of node-regression: next: feature needs the feature's number. Give it in the key of",
        ),
        (
            {"task": "node-regression", "task_params": {"of": 0}},
            "task_params of node-regression: of is the number of a feature. Leave it out, or set next: feature",
        ),
    ],
)  # fmt: skip
def test_a_wrong_value_ends_in_one_sentence_that_names_it(
    more: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    code, _, error = invoke("config", "--config", write(tmp_path, **more))
    assert code == 1
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("system", [WHOLE, VERTEX], ids=["whole", "vertex"])
def test_a_file_with_one_destination_is_evaluated_and_has_no_score(
    system: dict[str, Any], tmp_path: Path
) -> None:
    """There is no negative, and so no question."""
    data = tmp_path / "events.parquet"
    pq.write_table(pa.table({"src": [n % 7 for n in range(60)], "dst": [9] * 60, "t": list(range(60))}), data)
    code, result, _ = invoke("evaluate", "--config", write(tmp_path, **system), "--data", str(data))
    assert (code, "ap" in result, result["events"]) == (0, False, 60)


def test_a_model_that_memory_has_no_room_for_is_refused_and_another_defect_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(told: str) -> None:
        def made(*_: object) -> None:
            raise RuntimeError(told)

        monkeypatch.setattr(SageLinear, "__init__", made)

    failing("DefaultCPUAllocator: can't allocate memory: you tried to allocate 420000000000000 bytes.")
    with pytest.raises(
        Failure, match=r"^model sage-linear does not fit into memory\. Lower its model_params"
    ):
        create_model("sage-linear", ModelShape(0, 4), {})
    failing("shapes differ")
    with pytest.raises(RuntimeError, match="shapes differ"):
        create_model("sage-linear", ModelShape(0, 4), {})


@pytest.mark.usefixtures("clean_environment")
def test_a_checkpoint_goes_on_with_its_target_however_it_is_said_and_with_no_other(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(snapshots=3))
    keys = {**WHOLE, "store": str(tmp_path / "store"), "task": "node-regression"}
    assert invoke("run", "--config", write(tmp_path, **keys), "--as-of", "1")[0] == 0
    said = write(tmp_path, **keys, task_params={"next": "in_degree"})
    code, result, _ = invoke("run", "--config", said, "--until-idle", "0")
    assert (code, result["snapshots"], result["total_snapshots"]) == (0, 1, 3)
    other = write(tmp_path, **keys, task_params={"next": "feature", "of": 0})
    code, _, error = invoke("run", "--config", other, "--until-idle", "0")
    assert code == 1
    assert 'was made with task_params = None, the configuration has {"next":"feature","of":0}' in error


@pytest.mark.usefixtures("clean_environment")
def test_a_checkpoint_that_names_a_target_goes_on_with_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_before(config: TrainerConfig, lane: LaneReader) -> dict[str, Any]:
        found = identity(config, lane)
        return {"target" if key == "task_params" else key: value for key, value in found.items()}

    make_lane(tmp_path / "store", events=meetings(snapshots=3))
    feature = {"next": "feature", "of": 0}
    keys = {**WHOLE, "store": str(tmp_path / "store"), "task": "node-regression"}
    with monkeypatch.context() as earlier:
        earlier.setattr("freshet_graph.trainer.continual.daemon.identity", of_before)
        run = write(tmp_path, **keys, task_params=feature)
        assert invoke("run", "--config", run, "--as-of", "1")[0] == 0
    other = write(tmp_path, **keys)
    assert invoke("run", "--config", other, "--until-idle", "0")[0] == 1
    same = write(tmp_path, **keys, task_params=feature)
    code, result, _ = invoke("run", "--config", same, "--until-idle", "0")
    assert (code, result["total_snapshots"]) == (0, 3)


def test_checkpoints_lie_in_a_folder() -> None:
    """An address would make a folder of that name here, which no other host has."""
    with pytest.raises(ValueError, match="checkpoints lie in a folder, found an address with s3:"):
        TrainerConfig.model_validate({"checkpoint": "s3://bucket/checkpoints"})
