"""Standard error of the stream job without a terminal: every line is JSON, and they tell what the job did."""

import json
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from bad_connections import bad_connections
from log_lines import error_of, log_lines
from running_job import Running, ended_by, endpoint, events_of, get, reached
from streaming import COMMAND, T0, command, configuration, edge, fresh_topic, send, started, written

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.sink import SnapshotSink

pytestmark = pytest.mark.integration

LANES = [{"name": "hash", "algorithm": "hash", "parts": 2}]


def test_a_good_run_tells_its_start_where_it_goes_on_seals_refusals_and_its_end(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka)
    days = [edge(1, k, T0 + 86_400 * k) for k in range(3)]
    send(kafka, topic, [*days, b"{", b'{"src": "\xc3\xa9"}'])
    path = written(tmp_path, configuration(tmp_path / "store", kafka, topic, lanes=LANES))
    for first in (True, False):
        done = command("run", "--config", path, "--until-idle", "0.5", "--json")
        assert done.returncode == 0, done.stderr
        told = {line["event"]: line for line in log_lines(done.stderr)}
        start = told["starting"]
        assert (start["store"], start["topics"]) == (str(tmp_path / "store"), [topic])
        assert {"version", "config", "graph", "lanes"} <= set(start)
        assert told["reading"]["offsets"] == {topic: {"0": 0 if first else 5}}
        end = told["ended"]
        assert json.loads(done.stdout) == {key: end[key] for key in json.loads(done.stdout)}
        assert ("sealed" in told, "messages refused" in told) == (first, first)
        if first:
            sealed = [line for line in log_lines(done.stderr) if line["event"] == "sealed"]
            assert (sum(line["snapshots"] for line in sealed), sum(line["events"] for line in sealed)) == (
                3,
                3,
            )
            assert sealed[-1]["snapshot"] == T0 // 86_400 + 2
            assert sealed[-1]["offsets"] == {topic: {"0": 5}}
            refused = [line for line in log_lines(done.stderr) if line["event"] == "messages refused"]
            assert sum(line["messages"] for line in refused) == 2
            for line in refused:
                assert (line["topic"], line["partition"]) == (topic, 0)
                assert line["offset"] in (3, 4)
                assert line["sentence"]


def test_the_figures_of_a_service_without_a_terminal_are_once_in_its_log(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, k, T0 + 86_400 * k) for k in range(3)])
    path = written(tmp_path, configuration(tmp_path / "store", kafka, topic, lanes=LANES))
    done = command("run", "--config", path, "--until-idle", "0.5")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert {line["event"]: line for line in log_lines(done.stderr)}["ended"]["events"] == 3
    done = command("run", "--config", path, "--until-idle", "0.5", "--log-format", "text")
    assert "│ events " in done.stdout
    assert "ended" not in done.stderr


@pytest.mark.parametrize("debug", [False, True])
def test_a_failing_run_ends_with_its_sentence_as_it_is(kafka: str, tmp_path: Path, debug: bool) -> None:
    path = written(tmp_path, configuration(tmp_path / "störe", kafka, "no-such-topic"))
    done = command("run", "--config", path, *(["--debug"] if debug else []))
    assert (done.returncode, done.stdout) == (1, "")
    told = log_lines(done.stderr)
    assert told[0]["event"] == "starting"
    assert "störe" in done.stderr, "letters are not escaped"
    assert (told[-1]["level"], told[-1]["exit_code"]) == ("error", 1)
    assert told[-1]["event"].startswith("kafka.topics: topic no-such-topic doesn't exist")
    assert told[-1]["event"] in done.stderr, "verbatim"
    assert ("exception" in told[-1]) is debug
    if not debug:
        assert error_of(done.stderr) == told[-1]["event"]


def test_wrong_usage_is_told_in_json_lines_too(tmp_path: Path) -> None:
    done = command("run", "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option: --no-such-option" in log_lines(done.stderr)[-1]["event"]


def test_a_command_that_does_not_log_says_one_plain_sentence(tmp_path: Path) -> None:
    done = command("inspect", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_whole_lines(kafka: str, tmp_path: Path, number: int) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, k, T0 + 86_400 * k) for k in range(5)])
    path = written(tmp_path, configuration(tmp_path / "store", kafka, topic, lanes=LANES))
    log = tmp_path / "job.log"
    job = started("run", "--config", path, "--json", log=log)
    try:
        # A kill may also come between a commit and the line about it.
        reached(lambda: events_of(tmp_path / "store") == 5 and '"sealed"' in log.read_text())
        job.send_signal(number)
        assert job.wait(60) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    finally:
        job.kill()
        job.wait()
    lines = [line for line in log.read_text().splitlines() if not line.startswith('{"snapshots"')]
    told = log_lines("\n".join(lines))
    assert {"starting", "reading", "sealed"} <= {line["event"] for line in told}
    assert (told[-1]["event"] == "ended") is (number == signal.SIGTERM)


def test_a_terminal_shows_lines_for_people(kafka: str, tmp_path: Path) -> None:
    path = written(tmp_path, configuration(tmp_path / "store", kafka, "no-such-topic"))
    own, terminal = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while part := os.read(own, 4096):
                shown.extend(part)
        except OSError:
            pass  # the other side is closed

    reading = threading.Thread(target=read)
    reading.start()
    done = subprocess.run([*COMMAND, "run", "--config", str(path)], stderr=terminal, check=False, timeout=120)
    os.close(terminal)
    reading.join(30)
    os.close(own)
    assert done.returncode == 1
    text = shown.decode()
    assert "error: kafka.topics: topic no-such-topic doesn't exist" in text
    assert '{"event"' not in text


def test_bad_connections_hold_up_neither_scrapes_nor_the_end(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, i, T0 + i) for i in range(5)])
    path = written(tmp_path, configuration(tmp_path / "store", kafka, topic))
    log = tmp_path / "job.log"
    job = started("run", "--config", path, log=log)
    try:
        reached(lambda: events_of(tmp_path / "store") == 5)
        url = endpoint(log)
        with bad_connections(int(url.rpartition(":")[2]), 200):
            assert "freshet_stream_events_total" in get(f"{url}/metrics")
            assert get(f"{url}/healthz") == "alive\n"
            assert get(f"{url}/readyz") == "ready\n"
            ended_by(job, log)
    finally:
        job.kill()
        job.wait()


def test_a_job_whose_loop_hangs_is_not_alive(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, over, offer = threading.Event(), threading.Event(), SnapshotSink.offer

    def hang(sink: SnapshotSink, batch: object) -> None:
        if hanging.is_set():
            over.wait(120)
        offer(sink, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(SnapshotSink, "offer", hang)
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, 2, T0)])
    content = configuration(tmp_path / "store", kafka, topic) | {"metrics": {"port": 0, "hung_after_s": 4}}
    running = Running(StreamConfig(**content))
    url = running.endpoint.url
    try:
        reached(lambda: events_of(tmp_path / "store") == 1)
        reached(lambda: get(f"{url}/healthz") == "alive\n")
        hanging.set()
        reached(lambda: "metrics.hung_after_s: 4" in get(f"{url}/healthz"))
        hanging.clear()
        over.set()
        reached(lambda: get(f"{url}/healthz") == "alive\n")
    finally:
        over.set()
        running.close()
