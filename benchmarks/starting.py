"""Processor seconds of an idle start: ``freshet-stream run`` on an empty topic, beside a bare ``import apache_beam``.

    python benchmarks/starting.py [--turns 9] [--lanes hash sep]

Each turn starts every command once, in a process of its own, with kernels compiled before. ``run --until-idle 0`` finds a new
store, an empty topic of a broker inside this process, and ends. Seconds are user and system time of the process, which
waiting does not lengthen, but other work on the machine does: compare rows, and read the column *beside Beam*.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import yaml
from confluent_kafka import Producer

from stream.kafka.embedded import API_VERSION, EmbeddedBroker

COMMAND = "from stream.start import main; main()"
BARE = "import apache_beam"
TOPIC = "idle"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--lanes", nargs="*", default=["hash"], help="Partitioners of the store's lanes.")
    given = parser.parse_args()
    spent: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        Producer({"bootstrap.servers": broker.address}).list_topics(TOPIC, timeout=10)  # which makes it
        for turn in range(-1, given.turns):  # the first compiles what is not compiled
            store = Path(folder) / str(turn)
            config = configuration(store, broker.address, given.lanes)
            run = ["-c", COMMAND, "run", "--config", str(config), "--until-idle", "0"]
            for row, command in {
                "`python -c pass`": ["-c", "pass"],
                f"`{BARE}`": ["-c", BARE],
                "`freshet-stream --help`": ["-c", COMMAND, "--help"],
                "`freshet-stream config`": ["-c", COMMAND, "config", "--config", str(config)],
                "`freshet-stream run`, a new store": run,
                "`freshet-stream run`, again": run,
                "`freshet-stream inspect`": ["-c", COMMAND, "inspect", str(store)],
            }.items():
                used = measured([sys.executable, *command])
                if turn >= 0:
                    spent.setdefault(row, []).append(used)
    beam = median(seconds for seconds, _ in spent[f"`{BARE}`"])
    print(
        "| | processor seconds, median (least to most) | beside Beam | more than Beam, s | MiB |\n|---|---|---|---|---|"
    )
    for row, values in spent.items():
        seconds, mib = ([value[at] for value in values] for at in (0, 1))
        middle = median(seconds)
        print(f"| {row} | {middle:.2f} ({min(seconds):.2f} to {max(seconds):.2f}) | {middle / beam:.2f} | "
              f"{middle - beam:+.2f} | {median(mib):.0f} |", flush=True)  # fmt: skip


def configuration(store: Path, bootstrap: str, lanes: list[str]) -> Path:
    """Write the configuration of a stream that nothing comes on."""
    config = {
        "graph": "idle",
        "store": str(store),
        "kafka": {
            "bootstrap": bootstrap, "topics": [{"name": TOPIC}], "api_version": list(API_VERSION),
        },
        "snapshots": {"interval_s": 10},
        "lanes": [{"name": name, "algorithm": name, "parts": 4} for name in lanes],
        "metrics": {"port": 0},
    }  # fmt: skip
    path = store.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command; user and system seconds of its process, and its largest resident size in MiB."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            raise SystemExit(f"{' '.join(command)}: {output.read().decode()}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
