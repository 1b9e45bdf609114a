"""``freshet-trainer`` in processes of its own: started, asked, waited for."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml
from log_lines import log_lines
from warm_popen import WarmPopen

PATIENCE_S = 300  # a rank alone loads its libraries for tens of seconds on a machine that is busy enough


def configure(folder: Path, **keys: object) -> Path:
    values = {
        "store": str(folder / "store"),
        "lane": "hash",
        "model": "sage-linear",
        "strategy": "vertex",
        "model_params": {"hidden": 8, "signature": 8},
        "window": 2,
        "optimisation": {"epochs": 2, "batch_size": 16},
        "checkpoint": str(folder / "checkpoints"),
        "checkpoint_every": 1,
        "metrics": {"port": 0},
        **keys,
    }
    path = folder / "trainer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@contextmanager
def started(*arguments: str, cold: bool = False, **more: str) -> Iterator[subprocess.Popen]:
    """``freshet-trainer`` in a process of its own; it and its ranks are gone afterwards.

    Args:
        cold: It loads its libraries, and each rank loads them again, as users see it.
        more: In its environment.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FRESHET_")}
    environment |= {"OMP_NUM_THREADS": "1", **more}
    process = (subprocess.Popen if cold else WarmPopen)(
        [*([sys.executable, "-m", "freshet_graph.trainer.cli"] if cold else ["freshet-trainer"]), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        for child in ranks_of(process):
            child.kill()
        process.kill()
        process.communicate()


def ranks_of(process: subprocess.Popen) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def number_of(rank: psutil.Process) -> int:
    """A rank's number; -1 for another child of a launcher."""
    name = rank.name()  # that of a forked one, whose environment nobody sees from outside
    return int(name.removeprefix("rank-") if name.startswith("rank-") else rank.environ().get("RANK", -1))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.05)


def scored(folder: Path) -> list[dict]:
    path = folder / "checkpoints" / "scores.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def run_to_end(config: Path, ranks: int) -> dict:
    with started(
        "run", "--config", str(config), "--ranks", str(ranks), "--until-idle", "1", "--json"
    ) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        return json.loads(out)


def numbers(lines: list[dict]) -> list[tuple]:
    keys = ("sequence", "tau", "ap", "auc", "mrr", "loss", "recency_ap", "random_ap", "steps")
    return [tuple(line.get(key) for key in keys) for line in lines]


def served(process: subprocess.Popen, ranks: int = 1) -> dict[int, str]:
    """Where each rank serves its health, from the first lines of the log."""
    assert process.stderr is not None
    found: dict[int, str] = {}
    while len(found) < ranks:
        (line,) = log_lines(process.stderr.readline())
        if line["event"] == "metrics":
            found[line["rank"]] = line["url"]
    return found


def get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()
