"""A live topic, several ranks, and ranks killed all the time: python benchmarks/live_ranks.py --strategy snapshot.

A real broker, a producer, ``freshet-stream run`` with a snapshot a second, and ``freshet-trainer run --ranks 2``, all started
as users start them. Beside the stream one rank at a time is killed with -9 at a random moment; its launcher starts all ranks
again. For the last tenth of the snapshots one rank goes on alone. The run is good if

- every snapshot that was sealed was scored, once and in order, and none is left when the producer has ended;
- every event that was sent is in the log, and ``freshet-stream verify`` finds no fault;
- memory is flat: of all processes of the trainer while two ranks run, the median of the last third is at most 5 % above that
  of the third before it. Samples of a start that a kill caused are left out: it is growing then.

With ``hybrid`` every series that the dashboard's panels about hybrid batches ask for is scraped from rank 0 at the end of its
work, told, and must be there. Exit code 1 otherwise.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from live import PARTITIONS, TOPIC, produce, service
from soak import FLAT_GROWTH, address_of, broker, memory_mib, scraped

from schemas.config import Kafka
from schemas.config import Topic as KafkaTopic
from stream.kafka.client import client_settings
from stream.kafka.topics import ensure_topic
from stream.store.log.reader import LogReader
from trainer.continual.journal import ScoreFile, weighted_mean

STRATEGIES: dict[str, dict[str, Any]] = {
    "snapshot": {"model": "cdgcn", "window": 6, "strategy_params": {"blocks": 2}},
    "vertex": {"model": "sage-linear", "window": 4},
    "group": {"model": "wdgcn", "window": 4, "horizon": 8},
    "hybrid": {
        "model": "tgcn",
        "window": 4,
        "horizon": 8,
        "strategy_params": {"adjuster": "dqn", "steps": 0, "seconds_per_snapshot": 0.2},
    },
    "whole": {"model": "tgcn", "window": 4},
}
"""Keys of the trainer's configuration; ``whole`` on one rank is the run to compare with."""
PATIENCE_S = 300.0
SAMPLE_S = 1.0
DASHBOARD = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards" / "freshet.json"
ONLY_HYBRID = re.compile(
    r"freshet_trainer_(?:batch_size|(?:adjuster|reservoir|generator|averages|divergence)_\w+)"
)
STARTS_S = 25.0
"""Within this time after a kill ranks import their libraries and load a checkpoint."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", choices=list(STRATEGIES), default="snapshot")
    parser.add_argument("--model", help="Default: one that the strategy is made for.")
    parser.add_argument(
        "--params", type=json.loads, default={}, help='Of the strategy, such as {"fetch": "halo"}.'
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--snapshots", type=int, default=520)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=int, default=200, help="Events per second.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--port", type=int, default=19180, help="Of rank 0's metrics; the next one is rank 1's."
    )
    parser.add_argument("--keep", type=Path, help="Folder to work in and to leave.")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-live-")))
        folder.mkdir(parents=True, exist_ok=True)
        return follow(folder, stack.enter_context(broker(folder)), given)


def follow(folder: Path, bootstrap: str, given: argparse.Namespace) -> int:
    settings = client_settings(Kafka(bootstrap=bootstrap, topics=[KafkaTopic(name=TOPIC)]))
    ensure_topic(settings, bootstrap, TOPIC, PARTITIONS)
    context = multiprocessing.get_context("spawn")
    sent = context.Value("q", 0)
    producer = context.Process(
        target=produce, args=(bootstrap, given.rate, float(given.snapshots), sent), daemon=True
    )
    keys = trainer_config(folder, given)
    job = service(folder, "stream", stream_config(folder, bootstrap, given.ranks))
    processes = [job]
    try:
        address_of(job, folder / "stream.log")
        producer.start()
        trainer = service(folder, "trainer", keys, "--ranks", str(given.ranks), "--json")
        processes.append(trainer)
        samples, killed = kill_again_and_again(folder, trainer, given)
        seen = shown(keys) if given.strategy == "hybrid" else {}
        trainer.send_signal(signal.SIGTERM)
        trainer.wait(PATIENCE_S)
        print(f"{scored(folder)} snapshots scored by {given.ranks} ranks; one goes on", file=sys.stderr)
        (folder / "trainer.log").rename(folder / "trainer.of-ranks.log")
        alone = service(folder, "trainer", keys, "--ranks", "1", "--until-idle", "20", "--json")
        processes.append(alone)
        producer.join()
        codes = [trainer.returncode, alone.wait(PATIENCE_S)]
        job.send_signal(signal.SIGTERM)
        codes.append(job.wait(PATIENCE_S))
    finally:
        for process in processes:
            for child in ranks_of(process):
                child.kill()
            process.kill()
    for name, value in seen.items():
        print(f"{name} {value}")
    good = tell(folder, samples, killed, sent.value, codes, given) and None not in seen.values()
    return 0 if good else 1


def shown(keys: dict[str, Any]) -> dict[str, float | None]:
    """What rank 0 tells of each series that panels about hybrid batches ask for; None where it has no such series."""
    asked = sorted(set(ONLY_HYBRID.findall(DASHBOARD.read_text(encoding="utf-8"))))
    told = scraped(f"http://127.0.0.1:{keys['metrics']['port']}/metrics")
    return {name: told.get(name) for name in asked}


def stream_config(folder: Path, bootstrap: str, parts: int) -> dict[str, Any]:
    return {
        "graph": "live",
        "store": str(folder / "store"),
        "kafka": {"bootstrap": bootstrap, "topics": [{"name": TOPIC, "format": "json"}]},
        "snapshots": {"interval_s": 1.0, "idle_timeout_s": 2.0},
        "lanes": [{"name": "hash", "algorithm": "hash", "parts": parts, "edge_life": 20}],
        "metrics": {"port": 0},
    }


def trainer_config(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    usual = STRATEGIES[given.strategy]
    return {
        "store": str(folder / "store"),
        "lane": "hash",
        "strategy": given.strategy,
        **usual,
        "strategy_params": {**usual.get("strategy_params", {}), **given.params},
        **({"model": given.model} if given.model else {}),
        "model_params": {"hidden": 32},
        "optimisation": {"epochs": 1},
        "checkpoint": str(folder / "checkpoints"),
        "metrics": {"port": given.port},
    }


def kill_again_and_again(
    folder: Path, trainer: "subprocess.Popen[bytes]", given: argparse.Namespace
) -> tuple[list[float], int]:
    """Until nine tenths of the snapshots are scored: MiB of the trainer's processes, and how many kills there were."""
    draws, samples, killed = random.Random(given.seed), list[float](), 0
    last = 9 * given.snapshots // 10
    at = sorted(draws.sample(range(3, last - 10), given.kills))
    growing_until = time.monotonic() + STARTS_S
    deadline = time.monotonic() + given.snapshots + PATIENCE_S
    while (done := scored(folder)) < last:
        if trainer.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(
                f"the trainer stands after {done} snapshots:\n{(folder / 'trainer.log').read_text()[-4000:]}"
            )
        alive = ranks_of(trainer)
        if at and done >= at[0] and len(alive) == given.ranks and time.monotonic() > growing_until - 15:
            at.pop(0)
            time.sleep(draws.uniform(0, 0.9))
            with contextlib.suppress(psutil.NoSuchProcess):
                draws.choice(alive).kill()
                killed += 1
            growing_until = time.monotonic() + STARTS_S
        elif time.monotonic() > growing_until:
            samples.append(memory_mib(trainer.pid)[0])
        time.sleep(SAMPLE_S)
    return samples, killed


def ranks_of(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def scored(folder: Path) -> int:
    """Snapshots with a whole line of scores."""
    path = folder / "checkpoints" / "scores.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def tell(
    folder: Path, samples: list[float], killed: int, sent: int, codes: list[int], given: argparse.Namespace
) -> bool:
    reader = LogReader(folder / "store")
    assert reader.last is not None
    lines = ScoreFile(folder / "checkpoints").lines()
    numbers = [line["sequence"] for line in lines]
    sealed = len(reader.snapshots)
    events = reader.totals.events + reader.last.tail_events
    verified = subprocess.run(
        [sys.executable, "-c", "from stream.start import main; main()", "verify", str(folder / "store")],
        capture_output=True,
        text=True,
        check=False,
    )
    third = len(samples) // 3
    before, last = np.median(samples[third : 2 * third]), np.median(samples[-third:])
    by_parts = [list(part) for part in np.array_split(np.array(lines), 4)]
    quality = ", ".join(f"{weighted_mean(part, 'ap', 'scored'):.3f}" for part in by_parts)
    lags = [line["lag"] for line in lines]
    print(f"{given.strategy}: {killed} kills; {sealed} snapshots sealed, {len(lines)} scored; "
          f"behind: {np.median(lags):.0f} in the median, {max(lags)} at most, {lags[-1]} at the end")  # fmt: skip
    print(
        f"{sent:,} events sent, {events:,} in the log; verify exits with {verified.returncode}, the services with {codes}"
    )
    print(f"trainer: {before:.0f} MiB in the second third, {last:.0f} in the last; AP by quarters {quality}")
    return bool(
        killed == given.kills
        and numbers == list(range(sealed))
        and lags[-1] == 0
        and events == sent
        and verified.returncode == 0
        and not any(codes)
        and last <= FLAT_GROWTH * before
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
