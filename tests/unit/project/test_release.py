"""A release is whole, says the same as the tree, and can be made again byte for byte."""

import hashlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERSION = "0.1.0"


def git(tree: Path, *arguments: str) -> str:
    who = {
        f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        ["git", *arguments], cwd=tree, env={**os.environ, **who}, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree with a section about the version in its changelog, committed."""
    copy = tmp_path_factory.mktemp("release") / "tree"
    git(ROOT, "clone", "--quiet", str(ROOT), str(copy))
    changelog = copy / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    changelog.write_text(text.replace("## [Unreleased]", f"## [{VERSION}] - 2026-11-29", 1), encoding="utf-8")
    git(copy, "commit", "--quiet", "--all", "--message", "release")
    return copy


def release(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "deploy" / "release" / "release.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_release_is_made_twice_alike_and_is_installed_offline(tree: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder, more in zip(folders, (["--wheels"], []), strict=True):
        made = release(tree, VERSION, "--out", str(folder), *more)
        assert made.returncode == 0, made.stderr
    files = {path.name: path.read_bytes() for path in folders[1].iterdir()}
    for name, content in files.items():
        if name != "SHA256SUMS":  # of more files in the first
            assert (folders[0] / name).read_bytes() == content, name
    for line in files["SHA256SUMS"].decode().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256(files[name]).hexdigest() == digest
    assert files.keys() - {"SHA256SUMS"} == {
        line.split("  ")[1] for line in files["SHA256SUMS"].decode().splitlines()
    }

    bill = json.loads(files["sbom.json"])
    components = {component["name"].lower(): component for component in bill["components"]}
    assert {"pyarrow", "torch", "apache-beam"} <= components.keys()
    assert components["pyarrow"]["licenses"]
    assert all(component["hashes"] for component in components.values())
    for name in ("sbom.json", *(name for name in files if name.startswith("requirements"))):
        assert b"://" not in files[name].replace(b"http://cyclonedx.org/schema/", b""), name

    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        str(folders[0]),
        "--require-hashes",
    ]
    subprocess.run([python, *install, "-r", folders[0] / "requirements-base.txt"], check=True, cwd=tmp_path)
    program = "from freshet_graph import open_store; print(open_store.__name__)"
    printed = subprocess.run(
        [python, "-c", program], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert printed.stdout == "open_store\n"


def test_what_is_not_ready_is_said(tree: Path, tmp_path: Path) -> None:
    other = release(tree, "9.9", "--out", str(tmp_path / "out"))
    assert other.returncode == 1
    assert "pyproject.toml has version 0.1.0. Set it to 9.9" in other.stderr
    (tmp_path / "out").mkdir()
    assert (
        "Remove it, or name another folder" in release(tree, VERSION, "--out", str(tmp_path / "out")).stderr
    )
    copy = tmp_path / "tree"
    git(tree, "clone", "--quiet", str(tree), str(copy))
    (copy / "README.md").write_text("changed", encoding="utf-8")
    assert "1 files are not committed" in release(copy, VERSION, "--out", str(tmp_path / "new")).stderr
    git(copy, "checkout", "--quiet", ".")
    changelog = copy / "CHANGELOG.md"
    changelog.write_text(
        changelog.read_text(encoding="utf-8").replace(f"[{VERSION}]", "[Unreleased]"), encoding="utf-8"
    )
    git(copy, "commit", "--quiet", "--all", "--message", "none")
    assert (
        f"CHANGELOG.md has no section ## [{VERSION}]"
        in release(copy, VERSION, "--out", str(tmp_path / "new")).stderr
    )
