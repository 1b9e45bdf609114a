"""Two jobs on one store: one writes, the other stands by and takes over, however the first one ends."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from forked import Commands
from running_job import endpoint, events_of, get, reached
from streaming import T0, command, configuration, contents, edge, fresh_topic, read_topic, send, written

from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.verify.store import verify

pytestmark = pytest.mark.integration

SECONDS = 75
"""For operators it is 30; here two cores may be a dozen processes'."""


def day(k: int) -> list[bytes | None]:
    return [*(edge(i, k + i, T0 + 86_400 * k + i) for i in range(20)), b"{"]


def store_configuration(folder: Path, kafka: str, topic: str, letters: str) -> Path:
    folder.mkdir()
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2}]
    snapshots, more = {"commit_every_s": 0.1}, {"dead_letters": letters}
    return written(
        folder,
        configuration(folder / "store", kafka, topic, lanes=lanes, snapshots=snapshots, kafka=more),
    )


def test_a_standby_takes_over_from_a_job_that_is_killed_or_told_to_end(
    kafka: str, tmp_path: Path, commands: Commands
) -> None:
    topic, letters = fresh_topic(kafka), fresh_topic(kafka, stem="dead")
    path = store_configuration(tmp_path / "shared", kafka, topic, letters)
    store = tmp_path / "shared" / "store"
    logs = [tmp_path / f"{k}.log" for k in range(3)]
    sent = 0

    def send_days(count: int) -> None:
        nonlocal sent
        for k in range(sent, sent + count):
            send(kafka, topic, day(k))
        sent += count

    send_days(3)
    jobs = [commands.start("run", "--config", path, log=logs[0])]
    reached(lambda: events_of(store) == 20 * sent)
    for ending, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
        k = len(jobs)
        jobs.append(commands.start("run", "--config", path, "--standby", log=logs[k]))
        url = endpoint(logs[k])
        reached(lambda: "standing by: " in get(f"{url}/readyz"))  # noqa: B023  asked in this round only
        assert str(jobs[-2].pid) in get(f"{url}/readyz")
        assert 'freshet_stream_standby{graph="test"} 1.0' in get(f"{url}/metrics")
        send_days(2)  # in mid-stream
        jobs[-2]._popen._send_signal(ending)
        gone_s = time.monotonic()
        jobs[-2].join(60)
        assert jobs[-2].exitcode == code, logs[k - 1].read_text()
        send_days(2)
        reached(lambda: events_of(store) == 20 * sent)
        assert time.monotonic() - gone_s < SECONDS, "the promise to operators"
        reached(lambda: get(f"{url}/readyz").strip() == "ready")  # noqa: B023
        assert 'freshet_stream_standby{graph="test"} 0.0' in get(f"{url}/metrics")
        told = [
            json.loads(line)["event"] for line in logs[k].read_text().splitlines() if line.startswith("{")
        ]
        assert [event for event in told if event in ("standing by", "taking over")] == [
            "standing by",
            "taking over",
        ]
    jobs[-1].terminate()
    jobs[-1].join(60)
    assert jobs[-1].exitcode == 0, logs[2].read_text()

    whole = store_configuration(tmp_path / "whole", kafka, topic, letters)
    for finished in (path, whole):
        assert commands.run("run", "--config", finished, "--until-idle", "0.3", log=tmp_path / "end.log") == 0
    assert contents(store) == contents(tmp_path / "whole" / "store")
    assert verify(store).problems == []
    published = {json.loads(value or b"null")["offset"] for _, value in read_topic(kafka, letters)}
    assert published == {21 * k + 20 for k in range(sent)}


def test_a_standby_that_is_told_to_end_does_so_at_once(
    kafka: str, tmp_path: Path, commands: Commands
) -> None:
    topic = fresh_topic(kafka)
    path = store_configuration(tmp_path / "shared", kafka, topic, fresh_topic(kafka, stem="dead"))
    first = commands.start("run", "--config", path, log=tmp_path / "first.log")
    reached(lambda: get(f"{endpoint(tmp_path / 'first.log')}/readyz").strip() == "ready")
    waiting = commands.start("run", "--config", path, "--standby", "--json", log=tmp_path / "waiting.log")
    reached(lambda: "standing by: " in get(f"{endpoint(tmp_path / 'waiting.log')}/readyz"))
    waiting.terminate()
    waiting.join(60)
    assert waiting.exitcode == 0
    result: dict[str, Any] = json.loads((tmp_path / "waiting.log").read_text().splitlines()[-1])
    assert (result["events"], result["ended"]) == (0, "stopped")
    for k in range(2):
        send(kafka, topic, day(k))
    reached(lambda: LaneReader(tmp_path / "shared" / "store", "hash").manifests)
    (tmp_path / "other").mkdir()
    for key, change in {
        "has snapshots.interval_s = 86400": {"snapshots": {"interval_s": 3600}},
        "has lanes.parts = 2": {"lanes": [{"name": "hash", "algorithm": "hash", "parts": 3}]},
        "topic no-such-topic doesn't exist": {"kafka": {"topics": [{"name": "no-such-topic"}]}},
    }.items():
        content = configuration(tmp_path / "shared" / "store", kafka, topic)
        content |= {
            key: {**content[key], **value} if isinstance(value, dict) else value
            for key, value in change.items()
        }
        unfit = command("run", "--config", written(tmp_path / "other", content), "--standby")
        assert (unfit.returncode, key in unfit.stderr) == (1, True), unfit.stderr
    refused = command("run", "--config", path)
    assert refused.returncode == 1
    assert str(first.pid) in refused.stderr, "without --standby a second writer is refused by name"
