"""The trainer as users start it: several ranks, signals, kills, a store that comes later."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bad_connections import bad_connections
from handlers import caught
from log_lines import error_of, log_lines
from trainer_processes import (
    PATIENCE_S,
    configure,
    get,
    number_of,
    numbers,
    ranks_of,
    run_to_end,
    scored,
    served,
    started,
    until,
)
from trainer_streams import held_back, make_lane, meetings

from freshet_graph.stream.store.plan import Stream, plan
from freshet_graph.trainer.strategies.cost_model import GAIN
from freshet_graph.trainer.untrained import NOTHING_LEARNED

IMPATIENT = Path(__file__).parent / "impatient"
ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = 30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    make_lane(folder / "store", events=meetings(snapshots=SNAPSHOTS, a_snapshot=80), parts=2)
    return folder / "store"


@pytest.fixture(scope="module")
def straight(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The lines of an uninterrupted run with two ranks."""
    folder = tmp_path_factory.mktemp("straight")
    result = run_to_end(configure(folder, store=str(store)), 2)
    assert result["snapshots"] == SNAPSHOTS
    return scored(folder)


@pytest.mark.slow
def test_two_ranks_learn_the_same_on_an_older_torch(
    store: Path, straight: list[dict], tmp_path: Path
) -> None:
    """2.11, with the CUDA libraries of the one that is installed: its launcher takes fewer settings."""
    older = tmp_path / "older"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-compile",
        "--target",
        older,
        "torch==2.11.0",
    ]
    subprocess.run(command, check=True, capture_output=True)
    config = configure(tmp_path, store=str(store))
    arguments = "run", "--config", str(config), "--ranks", "2", "--until-idle", "0.5", "--json"
    with started(*arguments, cold=True, PYTHONPATH=f"{older}{os.pathsep}{ROOT}") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert json.loads(out)["snapshots"] == SNAPSHOTS
    assert [line["tau"] for line in scored(tmp_path)] == [line["tau"] for line in straight]


def test_two_ranks_choose_lane_and_strategy_by_what_they_measure_and_resume_with_both(
    store: Path, tmp_path: Path
) -> None:
    keys = {"lane": "auto", "strategy": "auto", "model_params": {"hidden": 8, "signature": 8, "fanouts": [1]}}
    config = configure(tmp_path, store=str(store), optimisation={"epochs": 1, "batch_size": 1000}, **keys)
    arguments = "run", "--config", str(config), "--ranks", "2", "--until-idle", "1", "--json"
    with started(*arguments, "--as-of", "11") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    lines = scored(tmp_path)
    (said,) = [entry for entry in log_lines(err) if entry["event"].startswith("the strategy")]
    first = next(line for line in lines if "predicted_s" in line)
    assert [line["strategy"] for line in lines[: first["sequence"]]] == ["snapshot"] * first["sequence"]
    predicted = first["predicted_s"]
    assert predicted.keys() == {"snapshot", "vertex"}
    expected = "vertex" if predicted["vertex"] <= GAIN * predicted["snapshot"] else "snapshot"
    assert said["strategy"] == expected
    assert {line["strategy"] for line in lines[first["sequence"] :]} == {expected}
    assert 0 < said["alpha_s"] < 10
    assert [entry["lane"] for entry in log_lines(err) if entry["event"] == "the lane is chosen"] == ["hash"]
    assert run_to_end(config, 2)["snapshots"] == SNAPSHOTS - len(lines)
    assert scored(tmp_path)[len(lines)]["strategy"] == expected
    assert "predicted_s" in scored(tmp_path)[len(lines)]


@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_after_kill_nine_it_goes_on_at_the_right_snapshot_with_the_same_numbers(
    victim: str, store: Path, straight: list[dict], tmp_path: Path
) -> None:
    shutil.copytree(store, tmp_path / "store")
    go_on = held_back(tmp_path / "store", "hash", 8)  # in mid-stream, however late the kill comes
    config = configure(tmp_path)
    with started("run", "--config", str(config), "--ranks", "2", "--json") as process:
        until(lambda: len(scored(tmp_path)) >= 4, "the fourth snapshot")
        ranks = ranks_of(process)
        assert len(ranks) >= 2
        if victim == "rank":
            served(process, 2)[0]
            ranks[-1].kill()
            rank_0 = served(process, 2)[0]  # of the next attempt
            again = 'freshet_trainer_restarts_total{graph="meetings"} 1.0'
            until(lambda: again in get(f"{rank_0}/metrics"), "that it is counted")
            go_on()
            assert (
                json.loads(at_the_end(process, tmp_path))["snapshots"] == SNAPSHOTS
            )  # the earlier ones, too
        else:
            process.kill()
            process.wait()
            until(
                lambda: not any(rank.is_running() and rank.status() != "zombie" for rank in ranks),
                "their end",
            )
            go_on()
            already = len(scored(tmp_path))
            assert already < SNAPSHOTS
            result = run_to_end(config, 2)
            assert result["total_snapshots"] == SNAPSHOTS
            assert SNAPSHOTS - already <= result["snapshots"] <= SNAPSHOTS - already + 1
    assert numbers(scored(tmp_path)) == numbers(straight)


def at_the_end(process: subprocess.Popen, folder: Path) -> str:
    """End a trainer once it has learned everything; returns what it printed."""
    until(lambda: len(scored(folder)) >= SNAPSHOTS, "the last snapshot")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return str(out)


@pytest.mark.slow
def test_a_rank_that_stands_still_for_a_while_is_waited_for_and_told_by_the_others(
    store: Path, straight: list[dict], tmp_path: Path
) -> None:
    shutil.copytree(store, tmp_path / "store")
    go_on = held_back(tmp_path / "store", "hash", 4)
    config = configure(tmp_path)
    arguments = "run", "--config", str(config), "--ranks", "2", "--json"
    impatient = os.pathsep.join([str(IMPATIENT), os.environ.get("PYTHONPATH", "")])
    with started(*arguments, cold=True, PYTHONPATH=impatient) as process:
        until(lambda: len(scored(tmp_path)) >= 3, "the third snapshot")
        rank_0 = served(process, 2)[0]
        (slow,) = (rank for rank in ranks_of(process) if number_of(rank) == 1)
        planned = plan(Stream(rate=80, nodes=30, features=0, interval_s=1, keep_days=0)).trainer_memory_bytes
        assert slow.memory_info().rss == pytest.approx(planned, rel=0.3)
        slow.suspend()
        go_on()
        seen = 'freshet_trainer_rank_up{{graph="meetings",rank="1"}} {}'.format
        until(lambda: seen("0.0") in get(f"{rank_0}/metrics"), "that rank 0 misses rank 1")
        assert len(scored(tmp_path)) <= 4, "nobody learns without it"
        slow.resume()
        until(lambda: seen("1.0") in get(f"{rank_0}/metrics"), "that rank 0 hears of rank 1 again")
        assert json.loads(at_the_end(process, tmp_path))["snapshots"] == SNAPSHOTS
    assert numbers(scored(tmp_path)) == numbers(straight)


def test_an_event_model_that_is_stopped_and_killed_gives_the_numbers_of_one_that_never_was(
    tmp_path: Path,
) -> None:
    """SIGTERM, then kill -9, then to the end; what was forgotten and is replayed goes on as well."""
    crowd = meetings(snapshots=24, a_snapshot=60, nodes=300, features=False)
    make_lane(tmp_path / "store", events=crowd, parts=1)
    kind = {
        "store": str(tmp_path / "store"),
        "model": "tgn-history",
        "model_params": {"memory": 8, "time_width": 8},
        "strategy": "sequential",
        "budget": {"nodes": 150, "events": 200},
        "optimisation": {"epochs": 2, "batch_size": 16, "replay": {"ratio": 0.5, "batches": 4}},
        "checkpoint_every": 2,
    }
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for folder in (broken, whole):
        folder.mkdir()
    config = configure(broken, checkpoint=str(broken / "checkpoints"), **kind)
    go_on = held_back(tmp_path / "store", "hash", 12)
    for number, lines in ((signal.SIGTERM, 4), (signal.SIGKILL, 9)):
        with started("run", "--config", str(config)) as process:
            until(lambda lines=lines: len(scored(broken)) >= lines, f"snapshot {lines}")
            process.send_signal(number)
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        assert len(scored(broken)) < 24
    go_on()
    for folder in (broken, whole):
        run_to_end(configure(folder, checkpoint=str(folder / "checkpoints"), **kind), 1)
    figures = ("sequence", "ap", "mrr", "loss", "random_ap", "inductive_ap", "evicted", "replayed", "trained")
    ours, theirs = (
        [tuple(line.get(key) for key in figures) for line in scored(folder)] for folder in (whole, broken)
    )
    assert len(ours) == 24
    assert theirs == ours
    assert sum(line["evicted"] for line in scored(whole)) > 100


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_finishes_the_snapshot_checkpoints_and_exits_zero(
    ranks: int, store: Path, tmp_path: Path
) -> None:
    config = configure(tmp_path, store=str(store), checkpoint_every=1000)
    with started("run", "--config", str(config), "--ranks", str(ranks), "--json") as process:
        until(lambda: len(scored(tmp_path)) >= 3, "the third snapshot")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        result = json.loads(out)
    assert 3 <= result["snapshots"] == len(scored(tmp_path))
    assert result["checkpoint"].endswith(f"{scored(tmp_path)[-1]['sequence']:016d}.pt")
    assert Path(result["checkpoint"]).exists()


def test_it_waits_for_a_store_serves_its_metrics_and_trains_once_there_is_one(tmp_path: Path) -> None:
    config = configure(tmp_path)
    with started("run", "--config", str(config), "--json") as process:
        url = served(process)[0]
        until(lambda: "waiting for lane hash" in get(f"{url}/readyz"), "waiting")
        assert get(f"{url}/healthz") == "alive\n"
        assert 'freshet_trainer_waiting{graph="",lane="hash"} 1.0' in get(f"{url}/metrics")
        make_lane(tmp_path / "store")
        until(lambda: len(scored(tmp_path)) == 6, "all snapshots")
        until(lambda: 'waiting{graph="meetings",lane="hash"} 1.0' in get(f"{url}/metrics"), "waiting again")
        assert get(f"{url}/readyz") == "ready\n"  # all is learned
        text = get(f"{url}/metrics")
        assert 'freshet_trainer_score{graph="meetings",metric="ap",scorer="recency",subset="all"}' in text
        assert 'freshet_trainer_events_total{graph="meetings",use="trained"}' in text
        assert "freshet_trainer_step_seconds_bucket" in text
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert json.loads(out)["snapshots"] == 6


@pytest.mark.slow
def test_an_event_model_learns_with_one_thread_and_waiting_threads_would_block(tmp_path: Path) -> None:
    """With the defaults, and without a variable: OpenMP itself says how it was set when torch was loaded."""
    make_lane(tmp_path / "store", events=meetings(snapshots=2, features=False))
    config = configure(
        tmp_path, model="tgn-history", strategy="sequential", model_params={"memory": 8, "time_width": 8}
    )
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("FRESHET_", "OMP_", "GOMP_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "freshet_graph.trainer.cli", "run", "--config", str(config), "--until-idle", "0"],
        env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [line["threads"] for line in log if line["event"] == "training"] == [1]
    assert "GOMP_SPINCOUNT = '0'" in done.stderr


def test_bad_connections_hold_up_neither_scrapes_nor_the_end(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    with started("run", "--config", str(configure(tmp_path)), "--json") as process:
        url = served(process)[0]
        until(lambda: len(scored(tmp_path)) == 6, "all snapshots")
        with bad_connections(int(url.rpartition(":")[2]), 200):
            assert "freshet_trainer_loss" in get(f"{url}/metrics")
            assert get(f"{url}/healthz") == "alive\n"
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert json.loads(out)["snapshots"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(), ("--ranks", "2")])
def test_sigterm_ends_it_at_once_while_it_loads_also_as_the_first_process_of_a_container(
    store: Path, tmp_path: Path, ranks: tuple[str, ...]
) -> None:
    """For that process the kernel does nothing about SIGTERM, as if it were ignored: only a handler of ours ends it."""
    config = configure(tmp_path, store=str(store))
    command = ["env", "--ignore-signal=TERM", sys.executable, "-m", "freshet_graph.trainer.start", "run"]
    for delay_s in (0, 1, 5):
        process = subprocess.Popen(
            [*command, "--config", str(config), "--json", *ranks],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: caught(process.pid), "a handler")  # noqa: B023  in this round only
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text(), (
            "long before it has loaded anything"
        )
        time.sleep(delay_s)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert set(NOTHING_LEARNED) <= set(json.loads(out)), "one summary, also of nothing"


def test_a_rank_that_waits_in_vain_for_another_is_not_alive(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    go_on = held_back(tmp_path / "store", "hash", 4)
    config = configure(tmp_path, metrics={"port": 0, "hung_after_s": 3})
    with started("run", "--config", str(config), "--ranks", "2", "--json") as process:
        urls = served(process, 2)
        until(lambda: len(scored(tmp_path)) == 4, "the fourth snapshot")
        until(lambda: get(f"{urls[0]}/healthz") == "alive\n", "a rank that waits for a snapshot is alive")
        hanging = max(ranks_of(process), key=number_of)
        hanging.suspend()
        until(lambda: "metrics.hung_after_s: 3" in get(f"{urls[0]}/healthz"), "a hang")
        hanging.resume()
        until(lambda: get(f"{urls[0]}/healthz") == "alive\n", "an end of the hang")
        go_on()
        until(lambda: len(scored(tmp_path)) > 4, "the fifth snapshot")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_ranks_that_cannot_work_end_with_one_sentence(store: Path, tmp_path: Path) -> None:
    config = configure(tmp_path, store=str(store))
    with started("run", "--config", str(config), "--ranks", "3", "--until-idle", "1") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert out == ""
    assert error_of(err) == "lane hash has 2 parts for 3 ranks. Start at most 2 ranks"


def test_evaluate_on_two_ranks_tests_the_events_of_both(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    events = meetings(snapshots=10, a_snapshot=60, features=False)
    table = events.select(["src", "dst", "op"]).append_column(
        "t", [[t / 1e6 for t in events["t"].to_pylist()]]
    )
    pq.write_table(table, tmp_path / "events.parquet")
    config = configure(tmp_path, interval_s=1.0, store=None)
    found = []
    for ranks in ("1", "2"):
        data = str(tmp_path / "events.parquet")
        with started(
            "evaluate", "--config", str(config), "--data", data, "--ranks", ranks, "--json"
        ) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        found.append(json.loads(out))
    assert [result["ranks"] for result in found] == [1, 2]
    for baseline in ("edgebank_ap", "recency_ap", "recency_popularity_ap", "random_ap"):
        assert found[0][baseline] == pytest.approx(found[1][baseline], abs=1e-4)
    assert found[1]["ap"] > 0.5


@pytest.mark.parametrize(
    ("model", "names"), [({}, {"snapshot", "vertex"}), ({"model": "tgn", "model_params": {"memory": 8}}, {"pac"})]
)  # fmt: skip
def test_two_ranks_agree_on_the_strategy_and_the_lane_of_an_evaluation(
    model: dict, names: set[str], tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    events = meetings(snapshots=10, a_snapshot=60, features=False)
    table = events.select(["src", "dst", "op"]).append_column(
        "t", [[t / 1e6 for t in events["t"].to_pylist()]]
    )
    pq.write_table(table, tmp_path / "events.parquet")
    config = configure(tmp_path, interval_s=1.0, store=None, strategy="auto", lane="auto", **model)
    arguments = "--data", str(tmp_path / "events.parquet"), "--ranks", "2", "--seeds", "2", "--json"
    with started("evaluate", "--config", str(config), *arguments) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    result, logs = json.loads(out), log_lines(err)
    assert result["predicted_s"].keys() == names
    assert result["strategy"] in names
    (chosen,) = [entry for entry in logs if entry["event"] == "the strategy is chosen"]
    (lane,) = [entry for entry in logs if entry["event"] == "the lane is chosen"]
    assert (chosen["strategy"], chosen["reason"]) == (result["strategy"], result["reason"])
    assert lane["lane"] == result["lane"]
    assert [run["seed"] for run in result["runs"]] == [0, 1]


def test_pac_learns_by_two_passes_over_the_training_part_whatever_comes_later(tmp_path: Path) -> None:
    """Two files that differ in who meets after the training part: each epoch on two ranks has the same loss and cut."""
    import pyarrow.parquet as pq

    events = meetings(snapshots=10, a_snapshot=80, nodes=60, features=False)
    table = events.select(["src", "dst", "op"]).append_column(
        "t", [[t / 1e6 for t in events["t"].to_pylist()]]
    )
    border = np.quantile(events["t"].to_numpy()[events["op"].to_numpy() == 1], 0.6)
    later = np.flatnonzero(events["t"].to_numpy() > border)
    src = table["src"].to_numpy().copy()
    src[later] = np.random.default_rng(5).permutation(src[later])
    config = configure(
        tmp_path, interval_s=1.0, store=None, lane="sep-two-pass", lane_params={"hubs": 0.05}, parts=4,
        model="tgn", model_params={"memory": 8, "time_width": 8}, strategy="pac",
    )  # fmt: skip
    epochs, results = [], []
    for name, column in (("a", table["src"]), ("b", pa.array(src))):
        pq.write_table(table.set_column(0, "src", column), tmp_path / f"{name}.parquet")
        arguments = ["--data", str(tmp_path / f"{name}.parquet"), "--split", "0.6,0.2,0.2", "--ranks", "2"]
        with started("evaluate", "--config", str(config), *arguments, "--json") as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        results.append(json.loads(out))
        epochs.append([
            (line["loss"], line["discarded"]) for line in log_lines(err) if line["event"] == "epoch"
        ])  # fmt: skip
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == 2
    assert epochs[0][0][1] > 0
    assert results[0]["ap"] != results[1]["ap"]


SNAPSHOT_FIGURES = {"sequence", "tau", "events", "loss", "ap", "recency_ap"}


def test_every_line_of_a_good_run_is_json_and_tells_its_story(store: Path, tmp_path: Path) -> None:
    config = configure(tmp_path, store=str(store))
    for first in (True, False):
        arguments = ["--as-of", "9"] if first else ["--until-idle", "1"]
        with started("run", "--config", str(config), "--ranks", "2", "--json", *arguments) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        told = [line for line in log_lines(err) if line.get("rank", 0) == 0]
        assert json.loads(out) == {key: told[-1][key] for key in json.loads(out)}, "the end has the result"
        events = [line["event"] for line in told]
        assert events[0] == "starting"
        assert {"version", "config", "store", "lane", "ranks"} <= set(told[0])
        assert ("resumed" in events) is not first
        learned = [line for line in told if line["event"] == "snapshot"]
        assert [line["sequence"] for line in learned] == list(range(10) if first else range(10, SNAPSHOTS))
        assert set(learned[-1]) >= SNAPSHOT_FIGURES
        assert events.count("checkpoint") == len(learned)
        assert events[-1] == "ended"


@pytest.mark.parametrize("arguments", [["--ranks", "3"], ["--ranks", "3", "--debug"], ["--no-such-option"]])
def test_every_line_of_a_failing_run_is_json(arguments: list[str], store: Path, tmp_path: Path) -> None:
    config = configure(tmp_path, store=str(store))
    with started("run", "--config", str(config), "--until-idle", "1", *arguments) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2 if arguments == ["--no-such-option"] else 1, "")
    told = log_lines(err)
    assert "No such option: --no-such-option" in told[-1]["event"] or told[-1]["exit_code"] == 1
    assert ("exception" in told[-1]) is ("--debug" in arguments)


# Who gets SIGKILL, and who SIGTERM only.
@pytest.mark.parametrize("victim", [pytest.param("rank", marks=pytest.mark.slow), "launcher"])
def test_every_line_of_a_killed_run_is_json(victim: str, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    go_on = held_back(tmp_path / "store", "hash", 4)
    config = configure(tmp_path)
    cold = (
        victim == "rank"
    )  # a forked rank that loses its peer may end before torch sees which of them died first
    with started("run", "--config", str(config), "--ranks", "2", "--json", cold=cold) as process:
        until(lambda: len(scored(tmp_path)) == 4, "the fourth snapshot")
        if victim == "rank":
            max(ranks_of(process), key=number_of).kill()
            go_on()
            until(lambda: len(scored(tmp_path)) == SNAPSHOTS, "all snapshots")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    told = log_lines(err)
    if victim == "rank":
        assert any("exitcode: -9" in line["event"] for line in told), "who died is told"
        assert any(line["event"].startswith("rank 0 lost another rank") for line in told), (
            "and why the other ends"
        )
        assert 1 in [line.get("attempt") for line in told]
        assert "resumed" in [line["event"] for line in told]
