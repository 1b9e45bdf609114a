#!/usr/bin/env python3
"""The demo: an embedded broker, a producer, the stream job and a trainer, for a few minutes.

    python deploy/demo/orchestrate.py [--out demo-output] [--events 120000] [--seconds 180]

It ends by itself, with a table, a figure and the files of the run in the output folder.
"""

import argparse
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from children import ChildDiedError, Children
from confluent_kafka import KafkaException
from figures import Reading, read, ready
from producer import LiveProducer
from progress import Progress
from report import draw, gather, print_tables, write_json
from rich.console import Console

from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.synthetic import interactions

TOPIC = "edges"
NODES, FEATURES, PARTS = 2_000, 32, 2
SNAPSHOTS = 36
IDLE_S = 6
READ_EVERY_S = 1.0
STALLED_S = 120
"""Without any progress for so long something is wrong; compiling kernels for the first time takes less."""
UP_TO_DATE_READINGS = 3
"""The trainer says itself how far behind it is: once may be just before it looked."""
MARKER = "demo.txt"
PYTHON = Path(sys.executable)


def main() -> int:
    """Run the demo; 0 when it went through, 1 with one sentence when a part of it failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description="Watch Freshet work for a few minutes.")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-output"), help="folder for everything it makes"
    )
    parser.add_argument("--events", type=int, default=120_000, help="interactions to produce")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long the producer takes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the children are ended on the way out
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        out = fresh_folder(arguments.out)
        with Children(out / "logs") as children:
            Demo(out, children, console, arguments.events, arguments.seconds, arguments.seed).run()
    except ChildDiedError as error:
        console.print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; everything that ran is ended")
        return 130
    return 0


class Demo:
    """One run: start everything, watch, let it end, report."""

    def __init__(
        self, out: Path, children: Children, console: Console, events: int, seconds: float, seed: int
    ) -> None:
        self._out, self._children, self._console = out, children, console
        self._events, self._seconds, self._seed = events, seconds, seed
        self._store = out / "store"
        self._readings: list[Reading] = []
        self._log: LogReader | None = None
        self._phases: dict[str, float] = {}
        self._phase, self._since = "making events", time.monotonic()

    def _enter(self, phase: str) -> None:
        """Begin a phase, and count the seconds of the one before."""
        now = time.monotonic()
        self._phases[self._phase] = self._phases.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    def run(self) -> None:
        """The whole demo."""
        console, out = self._console, self._out
        file = out / "events.parquet"
        table = interactions(
            NODES, self._events, features=FEATURES, seed=self._seed, start_s=0.0, span_s=self._seconds
        )
        pq.write_table(table, file)
        events = read_events(file).events
        console.print(
            f"[bold]Freshet demo[/]: {len(events):,} events, sent for {self._seconds:.0f} s or longer on a busy machine, through "
            "Kafka's protocol into "
            f"snapshots of {self._seconds / SNAPSHOTS:g} s, parts, and a model. Logs: {out / 'logs'}",
            highlight=False,
            soft_wrap=True,
        )
        self._enter("starting the broker")
        broker = self._start_broker()
        producer = self._producer(events, broker)
        self._enter("starting the services")
        self._start_services(broker)
        try:
            with Progress(console, producer.total) as progress:
                self._watch(progress, producer)
        finally:
            producer.close()
        self._report(producer.sent)

    def _start_broker(self) -> str:
        address = self._out / "broker.address"
        self._children.start(
            "broker", PYTHON, "-m", "freshet_graph.stream.kafka.embedded", "--port-file", address
        )
        self._children.wait_for(address, "the embedded broker", patience_s=60)
        return address.read_text(encoding="ascii")

    def _producer(self, events: pa.Table, broker: str) -> LiveProducer:
        try:
            return LiveProducer(events, broker, TOPIC, unread=self._unread)
        except KafkaException as error:
            self._children.check()
            raise ChildDiedError(f"the embedded broker does not answer: {error.args[0]}") from error

    def _start_services(self, broker: str) -> None:
        stream_port, trainer_port = _free_ports(2)
        self._stream_url = f"http://127.0.0.1:{stream_port}"
        self._trainer_url = f"http://127.0.0.1:{trainer_port}"
        stream = self._out / "stream.yaml"
        _write_yaml(
            stream,
            {
                "graph": "demo",
                "store": str(self._store),
                "kafka": {
                    "bootstrap": broker,
                    "topics": [{"name": TOPIC, "format": "json"}],
                    "dead_letters": f"{TOPIC}.dead",
                    "api_version": [2, 1],  # the embedded broker's
                },
                "snapshots": {"interval_s": self._seconds / SNAPSHOTS, "idle_timeout_s": 2.0},
                "features": {"node": FEATURES, "segments": 4},
                "lanes": [
                    {"name": "distdy", "algorithm": "distdy", "parts": PARTS},
                    {"name": "hash", "algorithm": "hash", "parts": PARTS},
                    {"name": "sep", "algorithm": "sep", "parts": PARTS, "params": {"hubs": 0.05}},
                ],
                "metrics": {"port": stream_port},
            },
        )
        trainer = self._out / "trainer.yaml"
        _write_yaml(
            trainer,
            {
                "store": str(self._store),
                "lane": "sep",
                "model": "tgn-history",
                "strategy": "sequential",
                "checkpoint": str(self._out / "checkpoints"),
                "device": "cpu",
                "metrics": {"port": trainer_port},
            },
        )
        self._children.start(
            "stream", PYTHON, "-m", "freshet_graph.stream.start", "run", "--config", stream, "--until-idle", str(IDLE_S), "--json"
        )  # fmt: skip
        self._children.start(
            "trainer", PYTHON, "-m", "freshet_graph.trainer.cli", "run", "--config", trainer, "--json"
        )  # fmt: skip
        self._wait(lambda: ready(self._stream_url), "the stream's endpoint", patience_s=120)

    def _watch(self, progress: Progress, producer: LiveProducer) -> None:
        """Until the stream has ended by itself and the trainer has learned its last snapshot."""
        up_to_date = 0
        moved_s, before = time.monotonic(), (0, 0, 0)
        producer.start()
        while True:
            reading = self._read()
            progress.show(self._phase, producer.sent, reading)
            self._children.check()
            now = (producer.sent, reading.events, reading.trained)
            if now != before:
                moved_s, before = time.monotonic(), now
            if producer.failure or time.monotonic() - moved_s > STALLED_S:
                what = producer.failure or f"nothing has moved for {STALLED_S} s while {self._phase}"
                raise ChildDiedError(f"{what}; logs are in {self._out / 'logs'}")
            if producer.is_alive():
                self._enter(
                    "streaming" if reading.events else "waiting for the services (compiling, the first time)"
                )
                if self._children.done("stream"):
                    raise ChildDiedError(
                        f"stream ended while events were still to come; its log is {self._children.log('stream')}"
                    )
            elif not self._children.done("stream"):
                self._enter("reading the rest" if reading.lag else "sealing the last snapshot")
            else:
                self._enter("training the last snapshots")
                up_to_date = up_to_date + 1 if reading.trainer_lag == 0 else 0
                if up_to_date == UP_TO_DATE_READINGS:
                    break
            time.sleep(READ_EVERY_S)
        self._children.stop("trainer")

    def _read(self) -> Reading:
        reading = read(self._stream_url, self._trainer_url)
        if self._log is None:
            with suppress(ConfigMissingError):  # nothing is committed yet
                self._log = LogReader(self._store)
        if self._log is not None:
            self._log.refresh()
            reading.snapshots = len(self._log.snapshots)
            if not reading.events and self._readings:  # the stream has ended, and its endpoint with it
                reading.events = sum(snapshot.num_events for snapshot in self._log.snapshots)
                reading.lanes = self._readings[-1].lanes
        self._readings.append(reading)
        return reading

    def _report(self, sent: int) -> None:
        console, out = self._console, self._out
        self._enter("reporting")
        outcome = gather(self._store, sent, self._readings, out / "checkpoints" / "scores.jsonl")
        write_json(outcome, out / "report.json")
        draw(outcome, out / "report.png")
        print_tables(outcome, console)
        self._enter("")
        spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self._phases.items())
        console.print(f"\nTime: {spent}", highlight=False, soft_wrap=True)
        console.print(
            f"\nFigure: [bold]{out / 'report.png'}[/], figures: {out / 'report.json'}, store: {self._store}, "
            f"logs: {out / 'logs'}\n\nTo try next:\n"
            f"  {_shown('freshet-stream')} inspect {self._store}\n"
            f"  {_shown('freshet-stream')} verify {self._store}\n"
            f"  {_shown('freshet-stream')} partition {out / 'events.parquet'} --algorithm sep --parts 4 --snapshots 20\n"
            f"  {_shown('freshet-stream')} config --example > stream.yaml    # then your own topic: see README.md",
            highlight=False,
            soft_wrap=True,
        )

    def _unread(self, sent: int) -> int:
        """What the broker holds for the stream: sent, but not in the log when last looked."""
        return sent - (self._readings[-1].events if self._readings else 0)

    def _wait(self, condition: Callable[[], bool], what: str, *, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            self._children.check()
            if time.monotonic() > deadline:
                raise ChildDiedError(
                    f"{what} did not come up within {patience_s:.0f} s; logs: {self._out / 'logs'}"
                )
            time.sleep(0.1)


def fresh_folder(out: Path) -> Path:
    """Make the output folder; an earlier demo's is replaced, anything else is left alone."""
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise ChildDiedError(
            f"{out} holds something else than a demo's output; choose another folder with --out"
        )
    shutil.rmtree(out, ignore_errors=True)
    (out / "logs").mkdir(parents=True)
    (out / MARKER).write_text(
        "Made by deploy/demo/orchestrate.py, replaced by its next run.\n", encoding="utf-8"
    )
    return out


def _free_ports(count: int) -> list[int]:
    """So many free ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _shown(name: str) -> str:
    command = PYTHON.with_name(name)
    return str(command.relative_to(Path.cwd())) if command.is_relative_to(Path.cwd()) else name


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
