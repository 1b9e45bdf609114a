"""``make audit``: finds what is affected, fails on what it cannot judge, and does not call silence a finding."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/release/audit.py"


def advisory(
    name: str, *events: dict[str, str], versions: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": ranges, "versions": list(versions)}
    return {"id": f"TEST-{name}", "modified": "2026-11-01T00:00:00Z", "affected": [affected], **more}


def audit(folder: Path, pins: str, *advisories: dict[str, Any], form: str = "json") -> tuple[int, str]:
    (folder / "pins.txt").write_text(f"# a comment\n{pins}\n")
    file = folder / f"advisories.{form}"
    if form == "zip":
        with zipfile.ZipFile(file, "w") as packed:
            for number, record in enumerate(advisories):
                packed.writestr(f"{number}.json", json.dumps(record))
    else:
        file.write_text("\n".join(map(json.dumps, advisories)) if form == "jsonl" else json.dumps(advisories))
    command = [sys.executable, SCRIPT, file, "--pins", folder / "pins.txt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("form", ["json", "jsonl", "zip"])
@pytest.mark.parametrize(
    ("version", "code"),
    [("1.9", 0), ("2.0", 1), ("2.3.1", 1), ("2.4", 0), ("3.0rc1", 0), ("3.1", 1), ("0.5", 1)],
)
def test_a_version_is_affected_from_introduced_to_before_fixed(
    tmp_path: Path, form: str, version: str, code: int
) -> None:
    events = ({"introduced": "2.0"}, {"fixed": "2.4"}, {"introduced": "3.0"}, {"last_affected": "3.1"})
    record = advisory("Some_Package", *events, versions=("0.5",))
    assert audit(tmp_path, f"some-package=={version}", record, form=form)[0] == code


def test_withdrawn_advisories_and_those_of_other_packages_affect_nothing(tmp_path: Path) -> None:
    records = [advisory("a", {"introduced": "0"}, withdrawn="2026-01-01"), advisory("b", {"introduced": "0"})]
    assert audit(tmp_path, "a==1.0", *records) == (
        0,
        "1 packages against 1 advisories, the newest of 2026-11-01: 0 affect them, 0 packages were skipped\n",
    )


def test_a_package_that_cannot_be_judged_fails_the_audit(tmp_path: Path) -> None:
    code, text = audit(tmp_path, "a==1.0\nb @ file:///b.whl", advisory("c", {"introduced": "0"}))
    assert code == 1
    assert "b @ file:///b.whl: skipped" in text


def test_without_advisories_nothing_is_audited(tmp_path: Path) -> None:
    assert audit(tmp_path, "a==1.0")[0] == 2
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, check=False, cwd=SCRIPT.parents[2]
    )
    assert done.returncode == 2
    assert done.stderr.startswith("not audited: no file of advisories was given.")
