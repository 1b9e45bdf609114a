"""The tutorials, followed from top to bottom: files are written as shown, commands run in order."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from streaming import fresh_topic, send

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def follow(
    name: str, folder: Path, here: dict[str, str] | None = None, around: dict[str, str] | None = None
) -> str:
    """Do what a page says, in a folder, with some of its words as they are here; what its commands print.

    Args:
        name: Of the page.
        folder: The commands' own.
        here: What stands for words of the page.
        around: Environment of the commands, besides ours.
    """
    text = (TUTORIALS / name).read_text(encoding="utf-8")
    for word, by in (here or {}).items():
        text = text.replace(word, by)
    printed = ""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        **(around or {}),
    }
    for about, block in re.findall(r"```([^\n]+)\n(.*?)```", text, re.DOTALL):
        if about == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block],
                cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout
        elif about != "text":  # which shows what a command prints
            file = folder / about.split('"')[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block, encoding="utf-8")
    return printed


def test_partitioners_are_compared_on_a_file(tmp_path: Path) -> None:
    printed = follow("compare-partitioners.md", tmp_path)
    assert (tmp_path / "events-partitioners.png").stat().st_size > 10_000
    found = [json.loads((tmp_path / f"{lane}.json").read_text()) for lane in ("hash", "distdy")]
    assert abs(found[0]["ap"] - found[1]["ap"]) < 0.05
    sent = re.findall(r"^(hash|distdy): AP [\d.]+, ([\d.]+) MB sent$", printed, re.MULTILINE)
    assert [lane for lane, _ in sent] == ["hash", "distdy"]
    assert float(sent[1][1]) < float(sent[0][1]), "the lower cut sends less"


def test_a_package_of_ones_own_brings_a_model_and_a_partitioner(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"  # instead of this environment's, and built without a network
    installed = {
        "PIP_TARGET": str(site),
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
    }
    found = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    printed = follow("your-own-model.md", tmp_path, around=installed | {"PYTHONPATH": found})
    assert "for strategy group or hybrid or snapshot or vertex or whole" in " ".join(printed.split())
    cut = dict(re.findall(r"^([\w-]+): cut ([\d.]+),", printed, re.MULTILINE))
    assert float(cut["near-first"]) < 0.8 * float(cut["hash"])
    figures = dict(re.findall(r"^│ (ap|random_ap) +│ ([\d.]+)", printed, re.MULTILINE))
    assert float(figures["ap"]) > float(figures["random_ap"]) + 0.05
    assert "algorithm: near-first" in printed


@pytest.mark.integration
def test_stolen_cards_stand_out_and_frauds_have_a_probability_while_payments_wait(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    cards, labels = fresh_topic(kafka, stem="cards"), fresh_topic(kafka, stem="labels")
    here = {
        "127.0.0.1:9092": kafka, '"payments"': f'"{topic}"', "name: payments": f"name: {topic}",
        "card-payments": cards, "chargebacks": labels, "127.0.0.1:9120": f"127.0.0.1:{port}",
        "port: 9120": f"port: {port}",
    }  # fmt: skip
    try:
        printed = follow("payments.md", tmp_path, here)
    except BaseException:  # the page ends them itself
        for left in tmp_path.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(left.read_text()), signal.SIGTERM)
        raise
    stolen = re.search(r"(\d+) of 20 stolen payments are among the least likely 5 %", printed)
    assert stolen is not None, printed
    assert int(stolen[1]) >= 12
    page = (TUTORIALS / "payments.md").read_text(encoding="utf-8")
    shown, figures = (
        {name: float(value) for name, value in re.findall(r"^(\w+) (0\.\d+)$", text, re.MULTILINE)}
        for text in (page, printed)
    )
    assert figures == {name: pytest.approx(value, abs=0.08) for name, value in shown.items()}
    assert figures["average_precision"] > figures["label_share_average_precision"] + 0.1
    answer, _ = json.JSONDecoder().raw_decode(printed[printed.index('{\n    "graph"') :])
    asked = {one["event_id"]: one["label_probability"] for one in answer["scores"]}
    assert asked["reported"] > 2 * asked["trusted"], printed
    said, sent = (
        {one: float(value) for one, value in re.findall(r"^(\w+): fraud ([\d.]+), pair", text, re.MULTILINE)}
        for text in (page, printed)
    )
    assert sent == {name: pytest.approx(value, abs=0.15) for name, value in said.items()}
    assert set(sent) == set(asked)
    assert sent["reported"] == pytest.approx(asked["reported"], abs=0.006)  # the other knows this one


@pytest.mark.integration
def test_the_notebook_leads_from_a_topic_to_the_events_that_surprised_a_model(
    kafka: str, tmp_path: Path
) -> None:
    topic, draw = fresh_topic(kafka), random.Random(3)
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    payments = []
    for number in range(1500):
        card = draw.randrange(30)
        merchant = {"id": 3 * (card % 5) + draw.randrange(3)}
        at = begin + timedelta(minutes=number)
        payment = {
            "id": f"p{number}",
            "card": {"id": card},
            "merchant": merchant,
            "created_at": at.isoformat(),
        }
        payments.append(json.dumps(payment).encode())
    send(kafka, topic, payments)
    notebook = json.loads((TUTORIALS / "your-topic.ipynb").read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in notebook["cells"]), "kept without outputs"
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    program = "\n".join(cells).replace("127.0.0.1:9092", kafka).replace('"payments"', f'"{topic}"')
    program += "\nprint(json.dumps([result['ap'], result['random_ap'], len(late.nsmallest(10, 'score'))]))"
    (tmp_path / "notebook.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "notebook.py"],
        cwd=tmp_path,
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "Agg",
        },
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ap, random_ap, surprising = json.loads(done.stdout.splitlines()[-1])
    assert ap > random_ap
    assert surprising == 10
