"""What the documentation shows is so: commands and options exist, links lead somewhere, tables are complete."""

import json
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from freshet_graph.schemas.config import Metrics, Service, StreamConfig
from freshet_graph.schemas.matrix import Matrix
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.schemas.wire import JsonEvent
from freshet_graph.stream.cli import app as stream_app
from freshet_graph.stream.commands.config import require_parts
from freshet_graph.stream.partition.interface import algorithms
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.synthetic import FraudOptions
from freshet_graph.trainer.cli import app as trainer_app
from freshet_graph.trainer.models.interface import MODELS, SnapshotModelOptions
from freshet_graph.trainer.models.layered import LayeredModel
from freshet_graph.trainer.strategies.interface import STRATEGIES
from freshet_graph.trainer.tasks.interface import TASKS
from freshet_graph.trainer.validation import require_trainable

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
APPS: dict[str, Any] = {
    "freshet-stream": typer.main.get_command(stream_app),
    "freshet-trainer": typer.main.get_command(trainer_app),
}
PARSERS: dict[str, Callable[[str], Any]] = {
    "yaml": yaml.safe_load,
    "json": json.loads,
    "toml": tomllib.loads,
    "python": lambda text: compile(text, "<block>", "exec"),
}
SMALLEST: dict[type[Service], dict[str, Any]] = {
    StreamConfig: {
        "graph": "demo",
        "store": "./store",
        "kafka": {"bootstrap": "127.0.0.1:9092", "topics": [{"name": "edges"}]},
    },
    TrainerConfig: {"store": "./store"},
    Matrix: {"data": [{"file": "events.parquet"}], "models": [{"name": "default"}]},
}
"""What a fragment of a configuration is completed by."""
COMMAND = re.compile(r"(?:\.venv/bin/)?(freshet-(?:stream|trainer))\s+([a-z-]+)(.*)")


def shell_lines() -> Iterator[tuple[str, str]]:
    """Every command line of ours in a code block, and in backquotes."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.DOTALL)
        for line in [line for block in blocks for line in block.splitlines()] + re.findall(
            r"`([^`\n]+)`", text
        ):
            if COMMAND.match(line.strip()):
                yield page.name, line.strip()


@pytest.mark.parametrize(("page", "line"), sorted(set(shell_lines())))
def test_every_command_line_that_is_shown_parses(page: str, line: str) -> None:
    found = COMMAND.match(line)
    assert found is not None
    program, name, rest = found.groups()
    command = APPS[program].commands.get(name)
    assert command is not None, f"{page}: {program} has no command {name}"
    rest = re.sub(r"\s(>|\||#|&&).*", "", rest)
    words = shlex.split(rest.replace("…", "").replace("[", "").replace("]", ""))
    known = {text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in known, f"{page}: {program} {name} has no {word}"
    positional = [
        parameter
        for parameter in command.params
        if parameter.required
        and (isinstance(parameter, click.Argument) or parameter.param_type_name == "argument")
    ]
    if not {"--help", "--example"} & set(words) and words:
        assert len(positional) == 0 or not words[0].startswith("--"), (
            f"{page}: {line} lacks its {positional[0].name}"
        )


class Block(NamedTuple):
    """A fenced block of a page, where it begins, and its language."""

    place: str
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in re.finditer(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, fence.start()) + 1
            found.append(Block(f"{page.relative_to(ROOT)}:{line}", fence[2], textwrap.dedent(fence[3])))
    return [block for block in found if block.language in languages]


def test_every_block_of_yaml_json_toml_and_python_can_be_read() -> None:
    shown = blocks(*PARSERS)
    wrong = {}
    for block in shown:
        try:
            PARSERS[block.language](block.text)
        except (yaml.YAMLError, ValueError, SyntaxError) as error:
            wrong[block.place] = str(error)
    assert wrong == {}
    assert {block.language for block in shown} == set(PARSERS)


@pytest.mark.usefixtures("clean_environment")
def test_every_configuration_that_is_shown_is_one_that_the_services_take() -> None:
    """Fragments are completed by the smallest configuration. A block that is of no known kind is wrong, too."""
    wrong = {}
    for block in blocks("yaml"):
        try:
            content = yaml.safe_load(block.text)
            kinds = [kind for kind in SMALLEST if set(content) <= set(kind.model_fields)]
            if not kinds:
                require_probes(content)
            for kind in kinds:
                # the names in that tutorial are of the package that it makes
                require_valid(kind, content, known="your-own-model" not in block.place)
        except (yaml.YAMLError, ValueError, Failure, AssertionError) as error:
            wrong[block.place] = str(error)
    assert wrong == {}


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize(
    "file", sorted((ROOT / "docs" / "results" / "tables").glob("*.yaml")), ids=lambda file: file.name
)
def test_the_matrix_of_a_table_can_be_run_and_names_its_page_and_commit(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    page = re.match(r"# (docs/results/[\w-]+\.md), .*commit [0-9a-f]{8}, \d{4}-\d\d-\d\d\.\n", text)
    assert page is not None
    assert f"tables/{file.name}" in (ROOT / page[1]).read_text(encoding="utf-8")
    assert f"--matrix {file.name} --out" in text
    require_valid(Matrix, yaml.safe_load(text), known=True)


def test_every_table_of_results_has_what_makes_it_in_its_section() -> None:
    """A command, a program, a matrix or tests."""
    makes = re.compile(
        r"benchmarks/\w+\.py|freshet-(?:stream|trainer) [a-z]|tables/[\w-]+\.yaml|tests/\w+/|^```python", re.M
    )
    pages = sorted((ROOT / "docs" / "results").glob("*.md"))
    assert pages
    wrong = [
        f"{page.name}: {section.splitlines()[0]}"
        for page in pages
        for section in re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.M)
        if re.search(r"^\|[ :|-]+\|$", section, re.M) and not makes.search(section)
    ]
    assert wrong == []


def require_valid(kind: type[Service], content: dict[str, Any], *, known: bool) -> None:
    config = kind.model_validate(completed(SMALLEST[kind], content))
    if isinstance(config, StreamConfig):
        late = any(topic.kind == "labels" for topic in config.kafka.topics)  # labels come after days
        most_s = 86_400 if late else 900
        assert 60 <= config.snapshots.interval_s <= most_s, "a model follows a stream within minutes"
    if isinstance(config, Matrix):
        for block in config.blocks:
            for data, model in product(block.data or config.data, block.models or config.models):
                keys = {**config.config, **data.config, **model.config}
                require_valid(TrainerConfig, keys, known=known)
    elif known:
        require_parts(config) if isinstance(config, StreamConfig) else require_trainable(config)


def completed(smallest: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: completed(smallest[key], value)
        for key, value in content.items()
        if isinstance(value, dict) and isinstance(smallest.get(key), dict)
    }
    return smallest | content | both


def require_probes(content: dict[str, Any]) -> None:
    """Of a container in Kubernetes."""
    assert set(content) == {"livenessProbe", "readinessProbe"}, (
        f"neither a configuration nor probes: {content}"
    )
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert content[probe]["httpGet"] == {"path": path, "port": Metrics().port}


def test_some_command_lines_were_found() -> None:
    assert len(set(shell_lines())) > 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for path in re.findall(r"`((?:schemas|stream|trainer|deploy|tests|docs|benchmarks)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_every_page_of_the_documentation_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in text, page.name


def test_the_make_targets_that_are_shown_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"


def test_the_readmes_programs_have_at_most_five_lines() -> None:
    """That they run is shown on a real broker, in tests/integration/test_readme.py."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        lines = [line for line in program.splitlines() if line and not line.startswith(("import", "from"))]
        assert len(lines) <= 5
    (event,) = re.findall(r'{"src".*?}', programs[0])
    values = {"buyer": "1", "shop": "7", "time.time()": "1700000000"}
    for name, value in values.items():
        event = event.replace(name, value)
    JsonEvent.validate_json(event)


def test_the_tables_of_what_there_is_name_what_the_registries_hold() -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    for registered, page in (
        (algorithms(), "partitioning.md"),
        (MODELS.all(), "models.md"),
        (STRATEGIES.all(), "strategies.md"),
        (TASKS.all(), "training.md"),
    ):
        ours = {
            name
            for name, found in registered.items()
            if found.__module__.startswith(("freshet_graph.stream.", "freshet_graph.trainer."))
        }
        assert ours
        for name in ours:  # other tests register some of their own in the same process
            assert f"| `{name}` |" in pages[page], f"{page} does not list {name}"


def test_the_tables_of_parameters_are_those_of_the_sections() -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    section = pages["partitioning.md"].split("\n## Parameters\n")[1].split("\n## ")[0]
    shown = {
        name: yaml.safe_load(defaults)
        for names, defaults in re.findall(r"^\| (`.*`) \| `(.*)` \|$", section, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    }
    ours = {
        name: found
        for name, found in algorithms().items()
        if found.__module__.startswith("freshet_graph.stream.")
    }
    assert shown == {
        name: {key: field.default for key, field in found.Options.model_fields.items()}
        for name, found in ours.items()
    }
    section = pages["fraud-stream.md"].split("\n## Parameters\n")[1].split("\n## ")[0]
    rows_of = re.findall(r"^\| `(\w+)` \| (.*?) \| .* \|$", section, re.MULTILINE)
    defaults_of = {key: field.default for key, field in FraudOptions.model_fields.items()}
    assert {name: yaml.safe_load(default) for name, default in rows_of} == defaults_of
    rows = pages["models.md"].split("| `model_params` | of |")[1].split("\n\n")[0]
    of_all = set(SnapshotModelOptions.model_fields)
    named: dict[str, set[str]] = {}
    for keys, models in re.findall(r"^\| (`.*?) \| (.*) \|$", rows, re.MULTILINE):
        for model in re.findall(r"`([^`]+)`", models):
            named.setdefault(model, set()).update(re.findall(r"`([^`]+)`", keys))
    layered = {name for name, found in MODELS.registered.items() if issubclass(found, LayeredModel)}
    for name, found in MODELS.registered.items():
        if found.kind == "snapshot" and found.__module__.startswith("freshet_graph.trainer."):
            without = of_all | ({"layers"} if name in layered else set())
            assert set(found.Options.model_fields) - without == named.get(name, set()) - {"layers"}, name


def test_the_table_of_log_lines_names_those_about_waiting_and_the_metrics_name_the_page_of_the_alerts() -> (
    None
):
    table = (
        (ROOT / "docs/operations.md")
        .read_text(encoding="utf-8")
        .split("| service | `event` |")[1]
        .split("\n\n")[0]
    )
    source = "".join(
        (ROOT / file).read_text(encoding="utf-8")
        for file in ("stream/job/standby.py", "trainer/continual/writes.py")
    )
    waits = re.findall(r'log\.(?:info|error)\("([^"]+)"', source)
    assert {"standing by", "taking over", "files are written again"} <= set(waits)
    of_commits = ("no room for a commit, waiting for it", "the store takes commits again")
    assert [event for event in (*waits, *of_commits) if f"`{event}`" not in table] == []
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8")
    (page,) = set(re.findall(r"runbook_url: \S*?docs/(\w+\.md)#", alerts))
    metrics = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert f"`runbook_url` of each is its paragraph in [{page}]({page})" in metrics


def test_every_command_is_listed() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    for program, group in APPS.items():
        section = text.split(f"## {program}")[1].split("\n## ")[0]
        for name in group.commands:
            assert re.search(rf"^\| `{name}\b", section, re.MULTILINE), f"docs/cli.md lacks {program} {name}"


def test_every_command_shows_an_example_in_its_help() -> None:
    for program, app in (("freshet-stream", stream_app), ("freshet-trainer", trainer_app)):
        for name in APPS[program].commands:
            shown = CliRunner().invoke(app, [name, "--help"])
            assert shown.exit_code == 0
            assert f"Example: {program} {name}" in " ".join(shown.output.split()), f"{program} {name} --help"


def test_keys_that_the_documentation_names_exist() -> None:
    keys = set(_keys(StreamConfig)) | set(_keys(TrainerConfig))
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for key in re.findall(r"`((?:kafka|snapshots|metrics|features|optimisation|lag)\.\w+)[`:]", text):
        assert key in keys or (ROOT / key).exists(), key


def _keys(kind: Any, prefix: str = "") -> Iterator[str]:
    for name, field in kind.model_fields.items():
        yield f"{prefix}{name}"
        if hasattr(field.annotation, "model_fields"):
            yield from _keys(field.annotation, f"{prefix}{name}.")


def test_diagrams_become_images_that_fetch_nothing() -> None:
    found = [
        text
        for page in PAGES
        for text in re.findall(r"```mermaid\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    assert len(found) >= 3
    for text in found:
        drawn = subprocess.run(
            [sys.executable, "-m", "mmdr", "--output", "-", "--format", "svg"],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        image = drawn.stdout.strip()
        assert image.startswith("<svg ")
        for word in re.findall(r'[("]([\w ]+)', text):
            assert word in image
        assert set(re.findall(r"https?://[\w.]+", image)) == {"http://www.w3.org"}


def test_decisions_are_numbered_without_a_gap() -> None:
    names = sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    for name in names:
        first = (ROOT / "docs/decisions" / name).read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith(f"# {int(name[:4])}. ")
