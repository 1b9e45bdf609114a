"""Writes the newest versions that fit pyproject.toml into constraints.txt, and says what changed.

    python deploy/release/constraints.py

Nothing is installed: pip resolves ``.[dev]`` for this Python. torch stays as it is, because machines keep wheels of that version.
Packages that pip does not resolve here, such as those for another Python, keep their lines. Then run the tests: make setup test.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.utils import canonicalize_name

PINS = Path(__file__).parents[2] / "constraints.txt"
STAYS = ("torch",)
OF_TORCH = (
    "cuda-",
    "nvidia-",
    "setuptools",
    "triton",
)  # prefixes of what a build of torch pins itself; its CPU build needs none


def main() -> None:
    """Resolve, write, and say what changed."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if line.startswith("#")]
    before = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    with tempfile.TemporaryDirectory() as folder:
        fixed, report = Path(folder, "fixed.txt"), Path(folder, "report.json")
        fixed.write_text("".join(f"{name}=={before[name]}\n" for name in STAYS))
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--dry-run",
        ]
        options = ["--ignore-installed", "--report", report, "-c", fixed, f"{PINS.parent}[dev]"]
        subprocess.run([*command, *options], check=True)
        found = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    names = {canonicalize_name(name): name for name in before}
    after = dict(before)
    for package in found:
        key = canonicalize_name(package["name"])
        if key != "freshet-graph" and not key.startswith(OF_TORCH):
            after[names.get(key, package["name"])] = package["version"]
    PINS.write_text(
        "\n".join([*head, *(f"{name}=={after[name]}" for name in sorted(after, key=str.lower))]) + "\n"
    )
    changed = [name for name in after if before.get(name) != after[name]]
    for name in changed:
        print(f"{name}: {before.get(name, 'new')} -> {after[name]}")
    print(f"{len(changed)} of {len(after)} versions changed. Now: make setup test")


if __name__ == "__main__":
    main()
