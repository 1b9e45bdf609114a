"""The commands of docs/procedures.md, as they stand there, on one machine that lives through all of them."""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kafka_broker import free_addresses
from running_job import events_of, reached
from s3_server import S3Server
from secure_broker import PASSWORD, USER, SecureBroker, set_password
from streaming import T0, configuration, edge, fresh_topic, send

from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/procedures.md").read_text(encoding="utf-8")
A_DAY = 30

SYSTEMCTL = """
import os, shlex, signal, subprocess, sys, time
from pathlib import Path
root = Path(sys.argv[0]).parents[1]
verb, *names = sys.argv[1:]

def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True

for name in names:
    unit = (root / "etc/systemd/system" / f"{name}.service").read_text()
    lines = [line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#")]
    place = root / f"run-{name}"
    if verb in ("stop", "restart"):
        pid = int(place.read_text())
        os.kill(pid, signal.SIGTERM)
        while not gone(pid):
            time.sleep(0.05)
        place.unlink()
    if verb in ("start", "restart"):
        assert not place.exists(), f"{name} runs"
        environment = dict(os.environ)
        for key, value in lines:  # kernels are compiled already
            if key == "Environment" and not value.startswith("NUMBA_CACHE_DIR="):
                environment.update([value.split("=", 1)])
            if key == "StateDirectory":
                (root / "var/lib" / value).mkdir(parents=True, exist_ok=True)
        (command,) = (value for key, value in lines if key == "ExecStart")
        with (root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(shlex.split(command), stdout=log, stderr=log, env=environment, start_new_session=True)
        place.write_text(str(process.pid))
"""
"""What the page needs of systemd: one process per unit, by the unit's own lines."""

PYTHON3 = """
import os, sys
from pathlib import Path
made = Path(sys.argv[3])
(made / "bin").mkdir(parents=True)
for name in ("freshet-stream", "freshet-trainer"):
    command = made / "bin" / name
    command.write_text("#!{python}\\nfrom freshet_graph.%s.start import main; main()\\n" % name.removeprefix("freshet-"))
    command.chmod(0o755)
pip = made / "bin/pip"
pip.write_text("#!/bin/sh\\n")
pip.chmod(0o755)
"""
"""A virtual environment with this tree installed."""

WITHOUT_OWNERS = """
import subprocess, sys
words = [word for word in sys.argv[1:] if word != "freshet"]
sys.exit(subprocess.call(["/usr/bin/install", *(word for word in words if word != "--owner")]))
"""


class Machine:
    """A folder in place of /, with the commands that only a real machine has."""

    def __init__(self, root: Path, broker: str) -> None:
        self.root = root
        self.state = root / "var/lib/freshet"
        addresses = free_addresses(["9108", "9109"])
        self.ports = {port: address.rpartition(":")[2] for port, address in addresses.items()}
        self._broker = broker
        for folder in ("bin", "etc/freshet", "etc/systemd/system", "opt", "srv", "var/lib"):
            (root / folder).mkdir(parents=True)
        commands = {
            "systemctl": SYSTEMCTL,
            "python3": PYTHON3.replace("{python}", sys.executable),
            "install": WITHOUT_OWNERS,
        }
        for name, code in commands.items() | dict.fromkeys(["chown", "useradd"], "").items():
            command = root / "bin" / name
            command.write_text(f"#!{sys.executable}\n{code}")
            command.chmod(command.stat().st_mode | stat.S_IXUSR)
        for unit in (ROOT / "deploy/systemd").iterdir():
            (root / unit.name).write_text(self._here(unit.read_text()))

    def _here(self, text: str) -> str:
        """Paths of the page below this root, and its addresses as they are here."""
        text = re.sub(r"(?<![\w.}])/(opt|etc|var|srv)/", rf"{self.root}/\1/", text)
        for port, own in self.ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{own}")
        return text.replace("127.0.0.1:9092", self._broker)

    def follow(
        self, procedure: str, *, names: dict[str, str] | None = None, steps: slice = slice(None)
    ) -> str:
        """Run the commands of a procedure; returns what they printed.

        Args:
            procedure: Its heading.
            names: What stands in the page as an example, and what it is here.
            steps: Which of its blocks of commands.
        """
        (section,) = re.findall(rf"^## {re.escape(procedure)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
        printed = ""
        for block in re.findall(r"```sh\n(.*?)```", section, re.S)[steps]:
            text = self._here(block)
            for name, own in (names or {}).items():
                text = text.replace(name, own)
            environment = os.environ | {
                "PATH": f"{self.root}/bin:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
            }
            done = subprocess.run(
                ["bash", "-euc", text], cwd=self.root, env=environment, capture_output=True, text=True, timeout=240, check=False
            )  # fmt: skip
            logs = "".join(path.read_text()[-2000:] for path in self.root.glob("*.log"))
            assert done.returncode == 0, text + done.stdout + done.stderr + logs
            printed += done.stdout
        return printed

    def write(self, name: str, keys: dict[str, object]) -> None:
        (self.root / "etc/freshet" / name).write_text(yaml.safe_dump(keys))

    def stop(self) -> None:
        for place in self.root.glob("run-*"):
            subprocess.run(
                [self.root / "bin/systemctl", "stop", place.name.removeprefix("run-")],
                check=False,
                timeout=60,
            )


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Stopped at the end."""
    made: list[Machine] = []
    yield made
    for machine in made:
        machine.stop()


def learner(machine: Machine, store: str) -> dict[str, object]:
    return {
        "store": store, "lane": "hash", "model": "sage-linear", "strategy": "vertex", "window": 2,
        "metrics": {"port": int(machine.ports["9109"])}, "checkpoint": str(machine.state / "checkpoints"),
        "model_params": {"hidden": 8, "signature": 8}, "optimisation": {"epochs": 1, "batch_size": 64},
    }  # fmt: skip


def day(number: int) -> list[bytes | None]:
    return [edge(i % 9, (i + 1 + number % 3) % 9, T0 + 86_400 * number + 60 * i) for i in range(A_DAY)]


def scored(state: Path) -> list[int]:
    path = state / "checkpoints/scores.jsonl"
    return [json.loads(line)["tau"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.timeout(900)
def test_a_machine_lives_through_all_procedures_and_no_event_is_lost(
    secure: SecureBroker, tmp_path: Path, machines: list[Machine]
) -> None:
    plain = secure.addresses["PLAIN"]
    machine = Machine(tmp_path, plain)
    machines.append(machine)
    topic, clicks = fresh_topic(plain), fresh_topic(plain, stem="clicks")
    state, days, sent = machine.state, 0, 0

    def a_day_later(into: str = topic) -> None:
        nonlocal days, sent
        send(plain, into, day(days))
        days, sent = days + 1, sent + A_DAY

    def nothing_is_lost() -> None:
        """After another day: all events are in the store, and each sealed snapshot was scored once."""
        a_day_later()
        reached(lambda: events_of(state / "store") == sent)
        reached(lambda: len(scored(state)) == days - 1)
        assert scored(state) == [snapshot.tau for snapshot in LogReader(state / "store").snapshots]

    password = tmp_path / "etc/freshet/kafka-password"
    password.write_text(PASSWORD)
    keys = secure.login("SCRAM-SHA-512", sasl_password_file=str(password))
    del keys["sasl_password"]
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 1, "window": 2}]
    metrics = {"port": int(machine.ports["9108"])}
    stream = configuration(
        state / "store", keys["bootstrap"], topic, kafka=keys, lanes=lanes, metrics=metrics,
        snapshots={"idle_timeout_s": 1},
    )  # fmt: skip
    machine.write("stream.yaml", stream)
    machine.write("trainer.yaml", learner(machine, str(state / "store")))
    a_day_later()
    machine.follow("1. Set up")
    nothing_is_lost()

    machine.follow("4. Back up")
    backed_up = events_of(tmp_path / "srv/backup/last/store")
    assert backed_up == sent
    assert (tmp_path / "srv/backup/last/checkpoints/scores.jsonl").exists()
    nothing_is_lost()

    machine.follow("2. Upgrade")
    assert (tmp_path / "opt/freshet").readlink() == Path("freshet-0.2.0")
    nothing_is_lost()

    machine.follow("3. Roll back")
    assert (tmp_path / "opt/freshet").readlink() == Path("freshet-0.1.0")
    nothing_is_lost()

    (tmp_path / "new-password").write_text("an0ther-p4ssw0rd")
    machine.follow("7. Rotate a password", steps=slice(0, 1))
    assert password.stat().st_mode & 0o777 == 0o600
    set_password(plain, USER, "an0ther-p4ssw0rd")
    try:
        machine.follow("7. Rotate a password", steps=slice(1, None))
        nothing_is_lost()

        a_day_later(clicks)
        stream["kafka"]["topics"].append({"name": clicks})
        machine.write("stream.yaml", stream)
        machine.follow("8. Add a topic", names={"clicks": clicks})
        nothing_is_lost()  # the new login is the restarted stream's first

        machine.follow("5. Restore")
        assert events_of(state / "store.old") == sent > backed_up
        nothing_is_lost()

        machine.follow("6. Move to another disk or machine")
        state = tmp_path / "srv/freshet"
        nothing_is_lost()
        machine.follow("9. Size a machine", steps=slice(0, 1))
        printed = machine.follow(
            "9. Size a machine", names={str(machine.state): str(state)}, steps=slice(1, None)
        )
        assert "GiB" in printed or "MiB" in printed
    finally:
        set_password(plain, USER, PASSWORD)
    machine.stop()
    result = verify(str(state / "store"))
    assert (result.ok, result.problems) == (True, [])
    for name in ("stream", "trainer"):
        text = (tmp_path / f"freshet-{name}.log").read_text()
        assert text.count('"event": "ended"') == text.count('"event": "starting"'), text[-3000:]


@pytest.mark.timeout(600)
def test_a_stream_and_a_trainer_that_share_only_a_bucket(
    kafka: str, s3: S3Server, tmp_path: Path, machines: list[Machine]
) -> None:
    store = s3.store(lease_s=2)
    topic = fresh_topic(kafka)
    for number in range(4):
        send(kafka, topic, day(number))
    for name in ("one", "other"):
        machine = Machine(tmp_path / name, kafka)
        machines.append(machine)
        keys = {"port": int(machine.ports["9108"])}
        lanes = [{"name": "hash", "algorithm": "hash", "parts": 1, "window": 2}]
        stream = configuration(tmp_path, kafka, topic, lanes=lanes, metrics=keys) | {"store": store}
        machine.write("stream.yaml", stream)
        machine.write("trainer.yaml", learner(machine, store))
        machine.follow("1. Set up", steps=slice(0, 2))
    one, other = machines
    other.follow(
        "10. Stream and trainer on different machines", steps=slice(1, None)
    )  # it waits for the store
    one.follow("10. Stream and trainer on different machines", steps=slice(0, 1))
    reached(lambda: len(scored(other.state)) == 3)
    assert scored(other.state) == [snapshot.tau for snapshot in LogReader(store).snapshots]
