"""Two real ranks: what training costs is told everywhere, and a defect inside a rank ends the run at once."""

import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from log_lines import log_lines
from trainer_processes import PATIENCE_S, configure, get, scored, served, started, until
from trainer_streams import SECOND, make_lane, meetings

PHASES = {"train", "backward", "synchronise", "update"}

DEFECT = '''
from freshet_graph.trainer.models.sage_linear import SageLinear

class Defective(SageLinear):
    """Of another shape on its third snapshot."""

    name = "defective"
    passes = 0

    def encode(self, inputs):
        rows = super().encode(inputs)
        self.passes += self.training
        return rows[:, :-1] if self.passes > 6 else rows
'''


def value(text: str, name: str, **labels: str) -> float:
    """Of one series of the metrics that were served."""
    (found,) = [
        line
        for line in text.splitlines()
        if line.startswith(name) and all(f'{key}="{label}"' in line for key, label in labels.items())
    ]
    return float(found.rpartition(" ")[2])


def test_seconds_waits_and_bytes_reach_metrics_and_the_score_file(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(snapshots=5), parts=2)
    config = configure(tmp_path, strategy_params={"fetch": "owner"})
    with started("run", "--config", str(config), "--ranks", "2", "--json") as process:
        urls = served(process, 2)
        until(lambda: len(scored(tmp_path)) == 5, "all snapshots")
        until(
            lambda: (
                'lag_snapshots{graph="meetings",lane="hash"} 0.0' in get(f"{urls[1]}/metrics")
                and value(
                    get(f"{urls[0]}/metrics"), "freshet_trainer_step_seconds_count", phase="train", rank="0"
                )
                == 5
            ),
            "its metrics",
        )
        texts = [get(f"{urls[rank]}/metrics") for rank in (0, 1)]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    lines = scored(tmp_path)
    for line in lines:
        assert set(line["train_seconds"]) >= PHASES
        assert 0 < line["wait_s"] < line["seconds"]["train"]
        assert line["sent_bytes"]["gradients"] > 0
        assert line["comm_seconds"].keys() == line["sent_bytes"].keys() >= {"gradients", "control", "ids"}
        assert sum(line["comm_seconds"].values()) == pytest.approx(line["wait_s"])
        assert (
            sum(line["train_seconds"][phase] for phase in PHASES - {"train"})
            <= line["train_seconds"]["train"]
        )
    for rank, text in enumerate(texts):
        for phase in PHASES - {"train"}:
            name = "freshet_trainer_step_seconds_count"
            assert value(text, name, phase=f"train_{phase}", rank=str(rank)) >= 4
        assert value(text, "freshet_trainer_wait_seconds_total", rank=str(rank)) > 0
    waited = value(texts[0], "freshet_trainer_wait_seconds_total", rank="0")
    assert waited == pytest.approx(sum(line["wait_s"] for line in lines))
    sent = value(texts[0], "freshet_trainer_comm_bytes_total", op="gradients")
    assert sent == sum(line["sent_bytes"]["gradients"] for line in lines)
    seconds = value(texts[0], "freshet_trainer_comm_seconds_sum", op="gradients")
    assert seconds == pytest.approx(sum(line["comm_seconds"]["gradients"] for line in lines))
    assert value(texts[0], "freshet_trainer_comm_seconds_count", op="gradients") == len(lines)
    assert value(texts[1], "freshet_trainer_comm_seconds_count", op="next_snapshot") == len(lines)


def test_evaluate_tells_them_too(tmp_path: Path) -> None:
    events = meetings(snapshots=6, a_snapshot=60, features=False)
    seconds = [t / SECOND for t in events["t"].to_pylist()]
    pq.write_table(events.select(["src", "dst", "op"]).append_column("t", [seconds]), tmp_path / "e.parquet")
    config = configure(tmp_path, interval_s=1.0, store=None, strategy_params={"fetch": "owner"})
    data = ["--data", str(tmp_path / "e.parquet")]
    with started("evaluate", "--config", str(config), *data, "--ranks", "2", "--json") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert told["train_s"] > told["wait_s"] > 0
    assert told["sent_bytes"]["gradients"] > 0
    assert told["sent_bytes"].keys() >= {"gradients", "embeddings"}
    assert told["comm_seconds"].keys() >= told["sent_bytes"].keys()
    assert sum(told["comm_seconds"].values()) == pytest.approx(told["wait_s"])


@pytest.mark.slow
def test_a_shape_error_inside_a_rank_ends_the_run_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from installed import install

    make_lane(tmp_path / "store", events=meetings(snapshots=5), parts=2)
    site = tmp_path / "site"
    site.mkdir()
    install(
        site, "defective-model", DEFECT, {"defective": "defective_model:Defective"}, group="freshet.models"
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{Path(__file__).parents[2]}")
    config = configure(tmp_path, model="defective")
    arguments = "run", "--config", str(config), "--ranks", "2", "--until-idle", "1"
    with started(*arguments, cold=True) as process:  # what is installed is found by another Python path
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")
    told = log_lines(err)
    sentence = told[-1]["event"]
    assert "shape" in sentence or "size" in sentence, sentence
    assert any(line["event"] == "unexpected error" and "exception" in line for line in told)
    assert {line["attempt"] for line in told if line["event"] == "starting"} == {0}, "it was not tried again"
