"""Make a release: wheel, sdist, pinned requirements with hashes, bill of materials, changes and checksums, in one folder.

    python deploy/release/release.py 0.1.0 --out dist/0.1.0

Everything is made from the newest commit, and a second run makes the same bytes, as long as the package index has the same files.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).parents[2]
SETS = ("base", "stream", "trainer", "all")
"""What a person installs: the distribution alone, or with one extra. Each has a file of requirements."""


class ReleaseError(Exception):
    """Something is not ready for a release; the sentence says what to do."""


def main() -> int:
    """Parse arguments and make the release."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "version", help="such as 0.1.0; what pyproject.toml, CITATION.cff, Dockerfile and CHANGELOG.md say"
    )
    parser.add_argument(
        "--out", type=Path, default=None, help="a folder that does not exist; default: dist/VERSION"
    )
    parser.add_argument(
        "--wheels", action="store_true", help="also the wheels of the base set, to install it offline"
    )
    arguments = parser.parse_args()
    out = arguments.out or ROOT / "dist" / arguments.version
    try:
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            committed(tree)
            require_ready(tree, arguments.version)
            if out.exists():
                raise ReleaseError(f"{out} exists. Remove it, or name another folder by --out")
            out.mkdir(parents=True)
            build(tree, out)
            pins(tree, out)
            if arguments.wheels:
                download(out)
            (out / "sbom.json").write_text(bill_of_materials(out, arguments.version), encoding="utf-8")
            (out / "changes.md").write_text(changes(tree, arguments.version), encoding="utf-8")
            checksums(out)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(out.iterdir()):
        print(path)
    return 0


def committed(tree: Path) -> None:
    """Lay the newest commit into a folder."""
    archive = tree / ".archive"
    subprocess.run(["git", "archive", "--output", archive, "--format", "tar", "HEAD"], cwd=ROOT, check=True)
    with tarfile.open(archive) as files:
        files.extractall(tree, filter="tar")
    archive.unlink()


def require_ready(tree: Path, version: str) -> None:
    """Check that the committed files name the version.

    Raises:
        ReleaseError: One does not, or there are changes that are not committed.
    """
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    if changed:
        raise ReleaseError(f"{len(changed.splitlines())} files are not committed. Commit or stash them")
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if project["version"] != version:
        raise ReleaseError(f"pyproject.toml has version {project['version']}. Set it to {version}")
    for name, text in (
        ("CITATION.cff", f"\nversion: {version}\n"),
        ("Dockerfile", f'image.version="{version}"'),
    ):
        if text not in (tree / name).read_text(encoding="utf-8"):
            raise ReleaseError(f"{name} has another version. Set it to {version}")
    changes(tree, version)


def build(tree: Path, out: Path) -> None:
    """Build wheel and sdist; files in them have the time of the commit."""
    time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", out.resolve()],
        cwd=tree, env={**os.environ, "SOURCE_DATE_EPOCH": time.strip()}, check=True, capture_output=True,
    )  # fmt: skip


def pins(tree: Path, out: Path) -> None:
    """Write ``requirements-SET.txt``: the distribution and all that it needs, each with its version and hashes."""
    (wheel,) = out.glob("*.whl")
    name, version = wheel.name.split("-")[:2]
    for chosen in SETS:
        extra = [] if chosen == "base" else ["--extra", chosen]
        command = ["uv", "pip", "compile", "--quiet", "pyproject.toml", *extra, "--constraint", "constraints.txt",
                   "--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate"]  # fmt: skip
        compiled = subprocess.run(
            [sys.executable, "-m", *command], cwd=tree, check=False, capture_output=True, text=True
        )
        if compiled.returncode:
            raise ReleaseError(f"requirements of {chosen} cannot be had: {compiled.stderr.strip()}")
        ours = f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{sha256(wheel)}\n"
        (out / f"requirements-{chosen}.txt").write_text(ours + compiled.stdout, encoding="utf-8")


def download(out: Path) -> None:
    """Put the wheels of the base set beside ours."""
    lines = (out / "requirements-base.txt").read_text(encoding="utf-8").partition("\n")[2].partition("\n")[2]
    with tempfile.TemporaryDirectory() as folder:
        others = Path(folder) / "others.txt"
        others.write_text(lines, encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
             "--require-hashes", "--no-deps", "-r", others, "-d", out],
            check=True,
        )  # fmt: skip


def requirements(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and SHA-256 sums of each line of a file of requirements."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if match := re.match(r"([\w.-]+)==([^\s;]+)", line):
            yield match[1], match[2], re.findall(r"--hash=sha256:(\w+)", line)


def bill_of_materials(out: Path, version: str) -> str:
    """All that the set ``all`` consists of, in CycloneDX's JSON: names, versions, licences and hashes, no addresses.

    Licences are those of installed distributions.
    """
    licences = LicenseFactory()

    def component(name: str, version: str, sums: list[str]) -> Component:
        licence = licence_of(name)
        return Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"{name}=={version}",
            purl=PackageURL("pypi", name=name.lower(), version=version),
            licenses=[licences.make_from_string(licence)] if licence else [],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=content) for content in sums],
        )

    ours, *others = requirements(out / "requirements-all.txt")
    bill = Bom(components=[component(*other) for other in others])
    bill.metadata.component = component(*ours)
    content = json.loads(JsonV1Dot6(bill).output_as_string())
    for changing in ("serialNumber",):
        content.pop(changing, None)
    content["metadata"].pop("timestamp", None)  # a second run makes the same bytes
    content.pop("dependencies", None)
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def licence_of(name: str) -> str | None:
    """The licence in an installed distribution's metadata; None where it is not installed, or names none."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [entry for entry in metadata.get_all("Classifier") or [] if entry.startswith("License :: ")]
    if classifiers:
        return str(classifiers[0].rpartition(" :: ")[2])
    text = str(metadata.get("License") or "").strip().partition("\n")[0]
    return text or None


def changes(tree: Path, version: str) -> str:
    """The changelog's section about a version.

    Raises:
        ReleaseError: There is none.
    """
    text = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## \[{re.escape(version)}\].*?(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise ReleaseError(
            f"CHANGELOG.md has no section ## [{version}]. Name the section Unreleased so, with the date"
        )
    return section[0].strip() + "\n"


def checksums(out: Path) -> None:
    """Write ``SHA256SUMS``, in the form that ``sha256sum --check`` reads."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def sha256(path: Path) -> str:
    """Of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
