"""What the benchmarks share: options, the machine, tables, turns, children, ranks, events, sessions, a broker and services.

A script says what is measured, on what, what is printed and what is asserted; the rest is here. Packages that few scripts need
are imported where they are used, because the GPU kit runs without them.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
"""Folder of real graphs: docs/performance.md."""
sys.path.append(str(ROOT / "tests" / "support"))  # last: a child may run the code of another tree

STREAM = ("-c", "from freshet_graph.stream.start import main; main()")
TRAINER = ("-m", "freshet_graph.trainer.cli")
DAY_US = 86_400_000_000
PATIENCE_S = 300.0
FLAT_GROWTH = 1.05
"""Memory is flat if the median of its last third is at most so many times that of the third before it."""


# --- options, machine, tables ---------------------------------------------------------------------------------------------


def options(
    doc: str, positional: Mapping[str, Any] | None = None, *, quiet: bool = False, **flags: Any
) -> argparse.Namespace:
    """Parse the command line, then print it and the machine.

    Args:
        doc: The script's docstring, which explains the options.
        positional: Name and default of one positional argument; a list takes several values.
        quiet: Nothing is printed.
        flags: Defaults by name. A bool is a switch, a list takes several values, and a dict has argparse's own keywords.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (positional or {}).items():
        keywords = default if isinstance(default, dict) else {"nargs": "*", "default": list(default)}
        parser.add_argument(name, **keywords)
    for name, default in flags.items():
        if isinstance(default, dict):
            keywords = default
        elif isinstance(default, bool):
            keywords = {"action": "store_true"}
        elif isinstance(default, list):
            keywords = {"nargs": "*", "default": default, "type": _kind(default[0]) if default else str}
        else:
            shown = f"default: {default}".replace("%", "%%")
            keywords = {"default": default, "type": _kind(default), "help": shown}
        parser.add_argument(f"--{name.replace('_', '-')}", **keywords)
    given = parser.parse_args()
    if not quiet:
        command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", shlex.join(sys.argv[1:])])
        print(f"`{command.strip()}`\n{machine()}", flush=True)
    return given


def _kind(value: object) -> Callable[[str], object]:
    return Path if isinstance(value, Path) else type(value)


def chosen(names: Iterable[str], among: Iterable[str]) -> list[str]:
    """The names, each of which must be known; all that are known if none is given."""
    names, known = list(names), list(among)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"{unknown[0]} is unknown. Choose among {'; '.join(known)}")
    return names or known


def existing(path: Path) -> Path:
    """A file that must be there."""
    if not path.exists():
        sys.exit(f"{path} is not there. Name another with --data")
    return path


def processor() -> str:
    """Its name, if the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> str:
    """The processor, the cores of this process, the load now, the version of Python, and the date."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    today = datetime.now(UTC).date()
    return f"{processor()}, {cores} cores, load {load:.1f}, Python {platform.python_version()}, {today}"


def table(titles: str, rows: Iterable[Sequence[object]], *, keep_going: bool = False) -> None:
    """Print a Markdown table, each row when it is known, so that a limit of time loses nothing. There must be a row.

    Args:
        titles: Of the columns, separated by ``|``.
        rows: Their cells.
        keep_going: An error ends the table with a line that begins with WRONG, not the script.
    """
    print(f"\n| {titles} |\n|{'---|' * (titles.count('|') + 1)}", flush=True)
    count = 0
    try:
        for row in rows:
            print(f"| {' | '.join(map(str, row))} |", flush=True)
            count += 1
        require(count > 0, f"nothing was measured for the table {titles.split(' |', maxsplit=1)[0]!r}")
    except Exception as error:
        if not keep_going:
            raise
        traceback.print_exc()
        wrong = f"{titles.split(' |', maxsplit=1)[0]}: {type(error).__name__}: {str(error)[:200]}"
        print(f"WRONG: {wrong}", flush=True)


def tables(
    parts: Mapping[str, tuple[Callable[..., Iterable[Sequence[object]]], str]],
    names: Iterable[str],
    *arguments: object,
) -> None:
    """Print the tables of the named parts; a part is a function, which gives the rows, and the titles."""
    for name in chosen(names, parts):
        rows, titles = parts[name]
        table(titles, rows(*arguments))


def require(condition: object, sentence: str) -> None:
    """End with a sentence unless the condition holds."""
    if not condition:
        raise SystemExit(f"FAILED: {sentence}")


# --- turns and clocks -----------------------------------------------------------------------------------------------------


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call."""
    began = clock()
    work()
    return clock() - began


def settled(device: Any) -> float:
    """Seconds, once a torch device has done all that it was given."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()


def in_turns(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    clock: Callable[[], float] = time.process_time,
    warm: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each way by round. Ways alternate, so other work on the machine meets all; the first rounds only warm up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + warm):
        for name, work in ways.items():
            seconds = seconds_of(work, clock)
            if turn >= warm:
                found[name].append(seconds)
    return found


def medians(found: Mapping[str, Iterable[float]]) -> dict[str, float]:
    """The median of each way."""
    return {name: statistics.median(values) for name, values in found.items()}


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, the least and the largest."""
    low, middle, high = (
        f"{each:,.{digits}f}" for each in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low} to {high})"


# --- children and ranks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Child:
    """A command that ended well: seconds on the wall and of its processors, largest resident MiB, and its output."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    out: str
    err: str

    @property
    def result(self) -> Any:
        """The JSON of its last line."""
        return json.loads(self.out.splitlines()[-1])


def environment(**more: str | None) -> dict[str, str]:
    """This process's, with one thread for each child; None removes a variable."""
    fixed = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": None}
    return {name: value for name, value in {**os.environ, **fixed, **more}.items() if value is not None}


def child(*arguments: object, tree: Path | None = None, **more: str | None) -> Child:
    """Run Python with these arguments, by the code of a tree if one is given; ``more`` are variables of its environment."""
    if tree is not None:
        more["PYTHONPATH"] = str(tree)
    command = [sys.executable, *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        # Python looks into the working directory before PYTHONPATH.
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment(**more), cwd=tree)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s, process.returncode = time.perf_counter() - began, os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        texts = out.read(), err.read()
    require(
        not process.returncode,
        f"{shlex.join(command)[:300]} ended with {process.returncode}:\n{texts[1][-3000:]}",
    )
    return Child(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, *texts)


def started(work: Callable[..., Any], *arguments: object, **variables: str) -> Any:
    """A process with one thread that calls a function of a script; ``variables`` are those of its environment."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, work, arguments), daemon=True)
    with patch.dict(os.environ, environment(**variables)):
        process.start()
    sender.close()  # so that its end is seen
    return process, receiver


def _answer(sender: Any, work: Callable[..., Any], arguments: Iterable[object]) -> None:
    sender.send(work(*arguments))


def answers(processes: Sequence[Any], most_s: float | None = None) -> list[Any]:
    """What processes return; each must answer, within so many seconds."""
    try:
        late = [number for number, (_, receiver) in enumerate(processes) if not receiver.poll(most_s)]
        if late:
            raise TimeoutError(f"process {late[0]} of {len(processes)} did not answer within {most_s} s")
        return [receiver.recv() for _, receiver in processes]
    finally:
        for process, _ in processes:
            process.kill()
            process.join()


def apart(work: Callable[..., Any], *arguments: object) -> Any:
    """What a function of a script returns in a process of its own."""
    return answers([started(work, *arguments)])[0]


def start_ranks(size: int, work: Callable[..., Any], *arguments: object) -> list[Any]:
    """A function of a script on ranks that gloo joins on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"MASTER_PORT": str(probe.getsockname()[1]), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(max(size, os.cpu_count() or 1))}
    ranks = range(size)
    return [started(work, *arguments, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in ranks]


def on_ranks(size: int, work: Callable[..., Any], *arguments: object) -> list[Any]:
    """What a function returns on each of some ranks, which must all end well."""
    return answers(start_ranks(size, work, *arguments))


# --- events, stores, sessions ---------------------------------------------------------------------------------------------


@contextmanager
def scratch(near: Path | str | None = None) -> Iterator[Path]:
    """A folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-", dir=near) as name:
        yield Path(name)


def event_table(schema: pa.Schema | None = None, **columns: Any) -> pa.Table:
    """Events with these columns: by default inserts of weight 1, and nulls in all other columns."""
    schema, count = schema or event_schema("int"), len(columns["src"])
    given = {"op": np.ones(count, np.int8), "weight": np.ones(count, np.float32), **columns}
    filled = [
        pa.array(given[field.name]).cast(field.type) if field.name in given else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.table(filled, schema=schema)


def evened(source: Any, events: int) -> tuple[Any, int]:
    """The events of a file with times at which every snapshot has as many of them, and its length, microseconds.

    Inside a snapshot times are stretched evenly, so order and most of what gaps show stay as they were.
    """
    table = source.events.sort_by("t")
    t = table["t"].to_numpy()
    interval_us = int((t[-1] - t[0]) * events // len(t)) + 1
    moved = np.empty_like(t)
    for number in range((len(t) - 1) // events + 1):
        here = slice(number * events, (number + 1) * events)
        since = t[here] - t[here][0]
        inside = (since * ((interval_us - 1) / max(1, int(since[-1])))).astype(np.int64)
        moved[here] = t[0] // interval_us * interval_us + number * interval_us + inside
    column = table.schema.get_field_index("t")
    return replace(
        source, events=table.set_column(column, table.schema.field("t"), pa.array(moved))
    ), interval_us


def lanes(*algorithms: str, parts: int, **more: Any) -> list[Lane]:
    """A lane by each partitioner, which gives it its name."""
    return [Lane(name=name, algorithm=name, parts=parts, **more) for name in algorithms]


def built(store: Path, source: Any, interval_us: int, made: Sequence[Lane], **more: Any) -> Path:
    """A store of events, which are a table or the path of a file."""
    from freshet_graph.stream.decode.files import read_events
    from freshet_graph.stream.store.from_file import build_store

    events = read_events(source) if isinstance(source, Path) else source
    build_store(events, store, interval_us=interval_us, lanes=list(made), **more)
    return store


def session_of(store: Path | str, ranks: Any = None, **keys: Any) -> Any:
    """A trainer's session over a lane; ``keys`` are those of its configuration."""
    from freshet_graph.schemas.trainer_config import TrainerConfig
    from freshet_graph.stream.store.lane.reader import LaneReader
    from freshet_graph.trainer.ranks import Ranks
    from freshet_graph.trainer.session.session import Session

    return Session(TrainerConfig.model_validate(keys), LaneReader(store, keys["lane"]), ranks or Ranks())


def snapshot_models() -> list[str]:
    """Names of all registered snapshot models."""
    from freshet_graph.trainer.models.interface import MODELS

    return sorted(name for name, made in MODELS.all().items() if getattr(made, "kind", "") == "snapshot")


def examples_of(session: Any, manifests: Iterable[Any]) -> Any:
    """Advance over snapshots; the training examples of the last."""
    for manifest in manifests:
        session.advance(manifest)
    return session.task.examples(session.view, session.strategy)


def written(path: Path, keys: Mapping[str, Any]) -> Path:
    """A configuration as YAML."""
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(keys)), encoding="utf-8")
    return path


def evaluated(data: Path, ranks: int = 1, **keys: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What ``freshet-trainer evaluate`` prints of a configuration, and its log."""
    with scratch() as folder:
        config = written(folder / "trainer.yaml", keys)
        done = child(*TRAINER, "evaluate", "--config", config, "--data", data, "--ranks", ranks, "--json")
    return done.result, [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]


# --- a broker, services, and what they hold -------------------------------------------------------------------------------


@contextmanager
def server(script: str, data: Path, *more: str) -> Iterator[str]:
    """host:port of a development server under deploy/, stopped in the end."""

    def call(action: str, *arguments: str) -> str:
        command = [sys.executable, str(ROOT / "deploy" / script), action, "--data", str(data), *arguments]
        return (
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines() or [""]
        )[-1]

    try:
        yield call("start", *more)
    finally:
        call("stop")


def broker(data: Path, properties: Mapping[str, str] | None = None) -> Any:
    """A real broker: a context with its host:port."""
    return server(
        "kafka/broker.py", data, *(f"--property={key}={value}" for key, value in (properties or {}).items())
    )


def topics(bootstrap: str, partitions: int, *names: str) -> dict[str, Any]:
    """Make topics; the client's settings."""
    from freshet_graph.schemas.config import Kafka, Topic
    from freshet_graph.stream.kafka.client import client_settings
    from freshet_graph.stream.kafka.topics import ensure_topic

    settings = client_settings(Kafka(bootstrap=bootstrap, topics=[Topic(name=names[0])]))
    for name in names:
        ensure_topic(settings, bootstrap, name, partitions)
    return settings


def stream_keys(
    store: Path,
    bootstrap: str,
    topic: Mapping[str, Any],
    *lanes: Mapping[str, Any],
    snapshots: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """A stream's configuration: keys of its topic, lanes and snapshots; ``kafka`` and others add to it."""
    kafka = {"bootstrap": bootstrap, "topics": [dict(topic)], **more.pop("kafka", {})}
    keys = {"graph": "bench", "store": str(store), "kafka": kafka, "snapshots": dict(snapshots), **more}
    return {"lanes": [{"algorithm": lane["name"], **lane} for lane in lanes], "metrics": {"port": 0}, **keys}


def service(
    folder: Path,
    name: str,
    keys: Mapping[str, Any],
    *more: str,
    run: Sequence[str] = (),
    service: str = "run",
) -> "subprocess.Popen[bytes]":
    """``freshet-stream run``, ``freshet-trainer run`` or ``score`` as users start them; NAME.log has what it says."""
    entry = STREAM if name.startswith("stream") else TRAINER
    config = written(folder / f"{name}.yaml", keys)
    command = [sys.executable, *run, *entry, service, "--config", str(config), *more]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment())


def ended(process: "subprocess.Popen[bytes]") -> int:
    """Ask a service to end; its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE_S)


def until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        require(time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.02)


def address_of(job: "subprocess.Popen[bytes]", log: Path) -> str:
    """Where a service says that it serves its metrics."""
    return f"{base_of(job, log, 'metrics')}/metrics"


def base_of(job: "subprocess.Popen[bytes]", log: Path, what: str) -> str:
    """The base address that a service says under an event of its log: metrics, or questions."""
    pattern = re.compile(rf'"event": "{what}".*?"url": "(http[^"]+)"')
    until(lambda: job.poll() is not None or pattern.search(log.read_text()), f"{what} of {log}", 120)
    found = pattern.search(log.read_text())
    require(found, f"the service did not start:\n{log.read_text()[-2000:]}")
    return str(found[1])  # type: ignore[index]


def scraped(address: str) -> dict[str, float]:
    """Every series of an endpoint, summed over its labels."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(address, timeout=30) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def children_of(process: "subprocess.Popen[bytes]", *, recursive: bool = True) -> list[Any]:
    """Living processes that a process started."""
    import psutil

    try:
        found = psutil.Process(process.pid).children(recursive=recursive)
        return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def kill(*processes: "subprocess.Popen[bytes]") -> None:
    """End processes with all that they started."""
    for process in processes:
        for each in [*children_of(process), process]:
            with contextlib.suppress(Exception):  # it has just ended
                each.kill()
        process.wait()


def memory_mib(process: "subprocess.Popen[bytes]") -> tuple[float, float]:
    """Anonymous memory, which a leak would grow, and mapped files, of a process and its children."""
    anonymous = mapped = 0
    for pid in (process.pid, *(each.pid for each in children_of(process))):
        with contextlib.suppress(OSError):  # it has just ended
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            kib = {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith("Rss")}
            anonymous += kib.get("RssAnon", 0)
            mapped += kib.get("RssFile", 0) + kib.get("RssShmem", 0)
    return anonymous / 1024, mapped / 1024


def is_flat(name: str, samples: Sequence[float]) -> bool:
    """Print the median of the second and of the last third of MiB; whether it has not grown."""
    third = len(samples) // 3
    before, last = np.median(samples[third : 2 * third]), np.median(samples[-third:])
    print(f"{name}: {before:.0f} MiB in the second third, {last:.0f} in the last, {max(samples):.0f} at most")
    return bool(last <= FLAT_GROWTH * before)


def scored(checkpoint: Path) -> int:
    """Snapshots with a whole line of scores."""
    path = checkpoint / "scores.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def events_in(store: Path) -> int:
    """Events of a log, its open snapshots included."""
    from freshet_graph.stream.store.log.reader import LogReader

    reader = LogReader(store)
    assert reader.last is not None
    return int(reader.totals.events + reader.last.tail_events)
