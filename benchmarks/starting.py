"""Processor seconds of an idle start: ``freshet-stream run`` on an empty topic, beside a bare ``import apache_beam``.

    python benchmarks/starting.py [--turns 9] [--lanes hash sep]

Each turn starts every command once, in a process of its own, with kernels compiled before. ``run --until-idle 0`` finds a new
store, an empty topic of a broker inside this process, and ends. Seconds are user and system time of the process, which
waiting does not lengthen, but other work on the machine does: compare rows, and read the column *beside Beam*.
"""

from pathlib import Path
from statistics import median

import harness
from confluent_kafka import Producer
from harness import STREAM

from freshet_graph.stream.kafka.embedded import API_VERSION, EmbeddedBroker

BEAM, TOPIC = "`import apache_beam`", "idle"


def configuration(store: Path, bootstrap: str, algorithms: list[str]) -> Path:
    """Write the configuration of a stream that nothing comes on."""
    lanes = ({"name": name, "parts": 4} for name in algorithms)
    api = {"api_version": list(API_VERSION)}
    keys = harness.stream_keys(
        store, bootstrap, {"name": TOPIC}, *lanes, snapshots={"interval_s": 10}, kafka=api
    )
    return harness.written(store.with_suffix(".yaml"), keys)


def main() -> None:
    given = harness.options(__doc__, turns=9, lanes=["hash"])
    spent: dict[str, list[harness.Child]] = {}
    with harness.scratch() as folder, EmbeddedBroker() as broker:
        Producer({"bootstrap.servers": broker.address}).list_topics(TOPIC, timeout=10)  # which makes it
        for turn in range(-1, given.turns):  # the first compiles what is not compiled
            store = folder / str(turn)
            config = configuration(store, broker.address, given.lanes)
            run = (*STREAM, "run", "--config", config, "--until-idle", 0)
            for row, command in {
                "`python -c pass`": ("-c", "pass"),
                BEAM: ("-c", "import apache_beam"),
                "`freshet-stream --help`": (*STREAM, "--help"),
                "`freshet-stream config`": (*STREAM, "config", "--config", config),
                "`freshet-stream run`, a new store": run,
                "`freshet-stream run`, again": run,
                "`freshet-stream inspect`": (*STREAM, "inspect", store),
            }.items():
                done = harness.child(*command, OMP_NUM_THREADS=None)
                if turn >= 0:
                    spent.setdefault(row, []).append(done)
    beam = median(done.cpu_s for done in spent[BEAM])
    rows = []
    for row, runs in spent.items():
        seconds = [done.cpu_s for done in runs]
        middle, mib = median(seconds), median(done.peak_mib for done in runs)
        rows.append(
            [row, harness.spread(seconds), f"{middle / beam:.2f}", f"{middle - beam:+.2f}", f"{mib:.0f}"]
        )
    harness.table(
        " | processor seconds, median (least to most) | beside Beam | more than Beam, s | MiB", rows
    )


if __name__ == "__main__":
    main()
