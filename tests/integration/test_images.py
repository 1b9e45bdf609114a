"""Both images, built without a container engine, and run as an orchestrator runs them: not as root, on a read-only root."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from kafka_broker import free_addresses
from log_lines import served_at
from running_job import get, sealed
from streaming import T0, edge, fresh_topic, send
from trainer_processes import scored, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
USER = 10001
STREAM_MB = 1000
"""The most that the stream's image may add to its base, uncompressed."""
LAUNCH = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && mount -t tmpfs -o mode=755 run "$0/run" && exec "$@"'
"""Run a command that sees a folder as read-only, but for its /run, where buildah puts a file."""
SNAPSHOTS = 4
TARGETS = os.environ.get("TARGETS", "stream")
"""Images to build: the trainer's has gigabytes of torch, and is left to ``make test-images``."""


class Images:
    """Images in a folder of their own.

    Args:
        folder: What ``make image`` gets as its store.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = [
            "buildah",
            f"--root={folder}/store",
            f"--runroot={folder}/run",
            "--storage-driver=vfs",
        ]

    def say(self, *arguments: str) -> str:
        return subprocess.run([*self.command, *arguments], check=True, capture_output=True, text=True).stdout

    def megabytes(self, name: str) -> float:
        """Bytes of an image's layers above those of its base, uncompressed."""
        kept = self.folder / "store"
        tops = {
            tag.removeprefix("localhost/").removesuffix(":latest"): image["layer"]
            for image in json.loads((kept / "vfs-images" / "images.json").read_text())
            for tag in image.get("names") or []
        }
        layers = {
            layer["id"]: layer for layer in json.loads((kept / "vfs-layers" / "layers.json").read_text())
        }
        size, layer = 0, layers[tops[name]]
        while layer["id"] != tops["freshet-base"]:
            size += layer["diff-size"]
            layer = layers[layer["parent"]]
        return size / 1e6


class Container:
    """A container of an image, with a folder for each path that its services may write to.

    Args:
        images: Have the image.
        service: ``stream`` or ``trainer``.
        folder: Gets temporary files, the configuration and the log.
        data: Is /data.
    """

    def __init__(self, images: Images, service: str, folder: Path, data: Path) -> None:
        self._images, self._folder = images, folder
        self.port = int(free_addresses([service])[service].rpartition(":")[2])
        self.log, self.temporary, self.settings = folder / "log", folder / "tmp", folder / "etc"
        for path in (folder, self.temporary, self.settings):
            path.mkdir()
        self.temporary.chmod(0o1777)
        self._name = images.say("from", f"freshet-{service}").strip()
        images.say(
            "config", "--volume=/data-", self._name
        )  # buildah would lay its own over ours, or the other way round
        self.root = Path(images.say("mount", self._name).strip())
        self.image = json.loads(images.say("inspect", self._name))["Docker"]["config"]
        volumes = {data: "/data", self.temporary: "/tmp", self.settings: "/etc/freshet:ro"}
        self._run = [
            "unshare", "--mount", "sh", "-c", LAUNCH, str(self.root),
            *images.command, "run", "--isolation", "chroot", "--network", "host", "--env", "OMP_NUM_THREADS=1",
            *[f"--volume={path}:{place}" for path, place in volumes.items()], self._name, "--",
        ]  # fmt: skip

    def configure(self, example: str, **keys: Any) -> None:
        """Write a configuration of ``deploy/`` to where the image expects it, with some keys changed."""
        content = yaml.safe_load((ROOT / "deploy" / example).read_text(encoding="utf-8"))
        content["metrics"]["port"] = self.port
        (self.settings / example).write_text(yaml.safe_dump(content | keys), encoding="utf-8")

    def run(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a command beside the service."""
        return subprocess.run([*self._run, *command], capture_output=True, text=True, check=False)

    @contextmanager
    def started(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Run what the image runs."""
        with self.log.open("wb") as output:
            process = subprocess.Popen(
                [*self._run, *self.image["Entrypoint"], *self.image["Cmd"]], stdout=output, stderr=output
            )
        try:
            yield process
        finally:
            for left in (
                psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            ):
                left.kill()
            process.wait()
            sys.stdout.write(self.log.read_text())  # seen if the test fails

    def is_served(self) -> bool:
        return served_at(self.log.read_text()) is not None

    def is_healthy(self) -> bool:
        """Ask as a container engine does."""
        way, *command = self.image["Healthcheck"]["Test"]
        assert way == "CMD"
        assert any(f":{port}/" in command[-1] for port in self.exposed())
        for port in self.exposed():
            command[-1] = command[-1].replace(f":{port}/", f":{self.port}/")
        return self.run(command).returncode == 0

    def exposed(self) -> list[str]:
        return [port.removesuffix("/tcp") for port in self.image["ExposedPorts"]]

    def stop(self, process: "subprocess.Popen[bytes]") -> None:
        """Send SIGTERM to the service, as an engine does, and wait for its exit code."""
        service = next(
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if child.uids().real == USER and not child.cmdline()[0].startswith("buildah")
        )
        service.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0, self.log.read_text()

    def kernels(self, folder: Path) -> set[Path]:
        return {path.relative_to(folder) for path in folder.rglob("*.nbc")}

    def require_closed(self) -> None:
        """Nothing but the volumes can be written to, the user is no other, and no pip is left."""
        refused = self.run(["touch", "/var/cache/freshet/numba/file"])
        assert "Read-only file system" in refused.stderr
        assert self.run(["id", "--user"]).stdout.strip() == str(USER)
        assert not list(self.root.glob("opt/freshet/**/site-packages/pip*"))
        assert not list(self.root.glob("root/.cache/*"))

    def require_kernels_of_the_build(self) -> None:
        shipped = self.kernels(self.root / "var/cache/freshet/numba")
        assert shipped
        assert self.kernels(self.temporary / f"freshet-kernels-{USER}") == shipped


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Images]:
    if os.getuid() or not all(map(shutil.which, ("buildah", "debootstrap", "unshare"))):
        pytest.skip("images are built by buildah, debootstrap and unshare, as root")
    folder = tmp_path / "images"
    try:
        made = subprocess.run(
            ["make", "image", f"STORE={folder}", f"TARGETS={TARGETS}"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        sys.stdout.write(made.stdout)
        yield Images(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def edges(snapshots: range) -> list[bytes | None]:
    """Forty events in each snapshot of five minutes."""
    return [
        edge(n % 17, 20 + n % 7, T0 + snapshot * 300 + 7 * n) for snapshot in snapshots for n in range(40)
    ]


def learn(trainer: Container, data: Path) -> None:
    """The trainer follows the stream's store until it has learned a snapshot, and is stopped."""
    trainer.require_closed()
    trainer.configure("trainer.yaml")
    with trainer.started() as training:
        until(lambda: len(scored(data)) > 1, "a snapshot learned")
        assert trainer.is_healthy()
        assert get(f"http://127.0.0.1:{trainer.port}/readyz").strip() == "ready"
        trainer.require_kernels_of_the_build()
        trainer.stop(training)
    assert list((data / "checkpoints").glob("*.pt"))


@pytest.mark.timeout(3600)
def test_images_serve_a_broker_on_a_read_only_root(kafka: str, images: Images, tmp_path: Path) -> None:
    assert images.megabytes("freshet-stream") <= STREAM_MB
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, USER, USER)
    topic, dead = fresh_topic(kafka), fresh_topic(kafka, stem="dead")

    stream = Container(images, "stream", tmp_path / "stream", data)
    stream.require_closed()
    stream.configure(
        "stream.yaml", kafka={"bootstrap": kafka, "topics": [{"name": topic}], "dead_letters": dead}
    )
    with stream.started() as streaming:
        until(stream.is_served, "an endpoint")
        send(kafka, topic, edges(range(SNAPSHOTS)))
        until(lambda: sealed(data / "store") >= SNAPSHOTS - 1, "snapshots")
        assert stream.is_healthy()
        assert get(f"http://127.0.0.1:{stream.port}/readyz").strip() == "ready"
        stream.require_kernels_of_the_build()

        if "trainer" in TARGETS:
            learn(Container(images, "trainer", tmp_path / "trainer", data), data)
        stream.stop(streaming)
