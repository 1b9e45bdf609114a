"""Files that other programs read by their names are what those programs expect."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from freshet_graph.schemas.version import version

ROOT = Path(__file__).parents[3]
SCHEMAS = {
    ".github/workflows/*.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    "CITATION.cff": "vendor.citation-file-format",
    "deploy/compose.yaml": "vendor.compose-spec",
    "deploy/flink/compose.yaml": "vendor.compose-spec",
}

pytestmark = pytest.mark.lint


@pytest.mark.parametrize(("pattern", "schema"), SCHEMAS.items())
def test_files_fit_their_published_schema(pattern: str, schema: str) -> None:
    files = [str(path) for path in ROOT.glob(pattern)]
    assert files
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        schema,
        "--default-filetype",
        "yaml",
        *files,
    ]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_workflows_run_what_a_change_has_to_pass() -> None:
    steps = [
        step.get("run", "")
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        for step in job["steps"]
    ]
    assert any(".ci/run" in step for step in steps)


def test_the_citation_has_the_version_and_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version()
    assert citation["license"] == "Apache-2.0"


def test_a_link_to_an_environment_is_ignored_as_its_folder_is(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for command in (["init", "--quiet"], ["check-ignore", "--quiet", ".venv"]):
        assert subprocess.run(["git", *command], cwd=tmp_path, check=False).returncode == 0


def test_waiting_for_a_service_shows_its_reason() -> None:
    text = (ROOT / "docs" / "procedures.md").read_text(encoding="utf-8")
    waits = [line for line in text.splitlines() if "curl " in line and "/readyz" in line]
    assert waits
    assert all("--fail-with-body" in line for line in waits)
