"""Compares the pinned versions with a file of advisories in the form of OSV (https://ossf.github.io/osv-schema/).

    python deploy/release/audit.py [ADVISORIES] [--pins constraints.txt]

ADVISORIES is JSON (one advisory or a list of them), JSON lines, or a zip of JSON files, as OSV publishes them for PyPI. It fails
(1) if a version is affected, or if a package cannot be judged. Without advisories it says "not audited" and fails (2): finding
nothing in no data would be no finding.
"""

import argparse
import json
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


def main() -> int:
    """Say what is affected or skipped; the exit code."""
    parser = argparse.ArgumentParser(description="Compare pinned versions with advisories.")
    parser.add_argument("advisories", nargs="?", type=Path, help="JSON, JSON lines, or a zip of JSON files")
    parser.add_argument("--pins", type=Path, default=Path("constraints.txt"), help="lines name==version")
    given = parser.parse_args()
    by_name: defaultdict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    count, newest = 0, ""
    for record in records(given.advisories) if given.advisories else ():
        affected = [part for part in record.get("affected", ()) if is_of_pypi(part)]
        if affected and not record.get("withdrawn"):
            count, newest = count + 1, max(newest, record.get("modified", ""))
        for part in affected if not record.get("withdrawn") else ():
            by_name[canonicalize_name(part["package"]["name"])].append((record["id"], part))
    if not count:
        where = (
            f"{given.advisories} has no advisory of PyPI"
            if given.advisories
            else "no file of advisories was given"
        )
        print(
            f"not audited: {where}. Give one in the form of OSV: make audit ADVISORIES=FILE", file=sys.stderr
        )
        return 2
    lines = [line.partition("#")[0].strip() for line in given.pins.read_text(encoding="utf-8").splitlines()]
    skipped, found, judged = [], [], 0
    for line in filter(None, lines):
        pin = re.fullmatch(r"([\w.-]+)==([^\s;]+)(?:\s*;.*)?", line)
        try:
            if pin is None:
                raise InvalidVersion(line)
            known = by_name[canonicalize_name(pin[1])]
            found += [f"{line}: {number}" for number, part in known if is_affected(Version(pin[2]), part)]
            judged += 1
        except InvalidVersion as error:
            skipped.append(f"{line}: skipped ({error})")
    for problem in [*found, *skipped]:
        print(problem)
    print(
        f"{judged} packages against {count} advisories, the newest of {newest[:10] or 'unknown date'}: {len(found)} affect "
        f"them, {len(skipped)} packages were skipped"
    )
    return int(bool(found or skipped or not judged))


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The advisories of a file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for name in packed.namelist():
                if name.endswith(".json"):
                    yield json.loads(packed.read(name))
        return
    text = path.read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    yield from content if isinstance(content, list) else [content]


def is_of_pypi(part: dict[str, Any]) -> bool:
    """Whether an affected package is one of PyPI."""
    package = part.get("package", {})
    return package.get("ecosystem", "").partition(":")[0] == "PyPI" and "name" in package


def is_affected(version: Version, part: dict[str, Any]) -> bool:
    """Whether a version is listed, or in a range: from ``introduced`` to before ``fixed``, or to ``last_affected``.

    Raises:
        InvalidVersion: A border of a range cannot be read.
    """
    if any(version == listed for listed in map(_version, part.get("versions", ())) if listed is not None):
        return True
    for span in part.get("ranges", ()):
        if span.get("type") == "GIT":
            continue
        inside = False
        for event in span.get("events", ()):
            kind, border = next(iter(event.items()))
            if kind == "introduced":
                inside = inside or border == "0" or version >= Version(border)
            elif (kind == "fixed" and version >= Version(border)) or (
                kind == "last_affected" and version > Version(border)
            ):
                inside = False
        if inside:
            return True
    return False


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None  # of another scheme, so not the pinned version


if __name__ == "__main__":
    sys.exit(main())
