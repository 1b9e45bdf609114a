"""What a user installs: the wheel, its metadata, and what the container image is made of."""

import email
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]


def built(project: Path, folder: Path) -> zipfile.ZipFile:
    program = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=project, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_string(wheel.read(name).decode())


def test_the_wheel_puts_one_name_on_the_import_path(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"freshet_graph"}


def test_the_wheel_holds_every_module(wheel: zipfile.ZipFile) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "schemas", "stream", "trainer"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode:
        pytest.fail(f"not a git checkout: {tracked.stderr}")
    assert {f"freshet_graph/{file}" for file in tracked.stdout.split()} <= set(wheel.namelist())


def test_an_archive_of_the_sources_makes_the_same_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    program = "import sys, hatchling.build; hatchling.build.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=ROOT, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        assert not [member.name for member in archive if member.issym()]
        archive.extractall(tmp_path, filter="data")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    again = built(folder, tmp_path)
    assert set(again.namelist()) == set(wheel.namelist())


def test_the_wheel_names_both_commands(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    text = wheel.read(name).decode()
    assert "freshet-stream = freshet_graph.stream.start:main" in text
    assert "freshet-trainer = freshet_graph.trainer.start:main" in text


def test_dgl_is_required_below_python_3_12_only(metadata: email.message.Message) -> None:
    ours = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    markers = [required.marker for required in ours if required.name == "dgl" and required.marker is not None]
    for extra in ("dgl", "all"):
        for version in ("3.11", "3.12"):
            is_wanted = any(
                marker.evaluate({"python_version": version, "extra": extra}) for marker in markers
            )
            assert is_wanted == (version == "3.11")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in pairs}


def test_every_dependency_is_pinned_for_the_tests_within_its_range(metadata: email.message.Message) -> None:
    pinned = pins()
    for required in [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]:
        if required.name == "freshet-graph":
            continue
        assert required.specifier.contains(pinned[required.name.lower()]), required


@pytest.mark.parametrize(("name", "faulty"), [("torch", "2.9.1"), ("pyarrow", "23.0.0")])
def test_versions_that_a_crafted_file_can_attack_are_outside_the_ranges(
    metadata: email.message.Message, name: str, faulty: str
) -> None:
    ranges = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    assert not any(each.name == name and each.specifier.contains(faulty) for each in ranges)


def test_torch_is_pinned_to_the_version_that_machines_keep_wheels_of() -> None:
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_the_version_is_the_changelogs_newest_section() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert len(sections) == 1 or sections[1] == version


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1]) for line in lines]


def test_what_the_image_copies_exists_and_is_in_the_build_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    context = {line[1:] for line in lines if line.startswith("!")}
    for name, rest in instructions():
        words = [word for word in shlex.split(rest) if not word.startswith("--")]
        if name == "COPY" and "--from=" not in rest:
            for source in words[:-1]:
                assert (ROOT / source).exists(), source
                assert source.split("/")[0] in context


def test_every_final_stage_runs_as_a_numbered_user_that_is_not_root() -> None:
    user = ""
    entry_points = []
    for name, rest in instructions():
        if name == "FROM" and not rest.split()[0].startswith("runtime"):
            user = ""
        elif name == "USER":
            user = rest
        elif name == "ENTRYPOINT":
            entry_points.append((user, rest))
    assert {rest for _, rest in entry_points} == {'["freshet-stream"]', '["freshet-trainer"]'}
    for user, _ in entry_points:
        # Orchestrators can check a number only (runAsNonRoot).
        assert re.fullmatch(r"[1-9]\d*(:\d+)?", user)


def test_every_final_stage_has_a_health_check_and_the_version_that_is_released() -> None:
    stages: list[list[str]] = []
    for name, _ in instructions():
        if name == "FROM":
            stages.append([])
        elif stages:
            stages[-1].append(name)
    final = [names for names in stages if "ENTRYPOINT" in names]
    assert len(final) == 2
    assert all("HEALTHCHECK" in names for names in final)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f'image.version="{version}"' in (ROOT / "Dockerfile").read_text()


def test_without_buildah_the_build_says_in_one_sentence_what_is_missing(tmp_path: Path) -> None:
    for program in ("bash", "dirname", "realpath"):
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    script = str(ROOT / "deploy" / "image" / "build.sh")
    for base, names in (("debootstrap", "buildah debootstrap"), ("python:3.11-slim-bookworm", "buildah")):
        done = subprocess.run(
            [tmp_path / "bash", script],
            env={"PATH": str(tmp_path), "BASE": base, "STORE": str(tmp_path / "store")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.startswith("error: buildah is not installed. Install it")
        assert f"apt-get install {names}," in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_the_image_keeps_compiled_kernels_where_its_user_can_write() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (folder,) = re.findall(r"NUMBA_CACHE_DIR=(\S+)", text)
    assert re.search(rf"chown -R [1-9]\d*:\d+ .*{re.escape(folder.rsplit('/', 1)[0])}", text)


def test_the_image_binds_metrics_to_all_addresses() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for service in ("STREAM", "TRAINER"):
        assert f"FRESHET_{service}_METRICS__HOST=0.0.0.0" in text
