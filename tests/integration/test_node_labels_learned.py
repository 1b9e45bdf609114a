"""Labels of nodes from a topic, from a live broker to the figures of a trainer."""

import json
from pathlib import Path
from random import Random

import pytest
from streaming import T0, configuration, edge, fresh_topic, run_job, send
from trainer_processes import configure, run_to_end, scored

pytestmark = pytest.mark.integration

DAY = 86_400
DAYS, A_DAY = 8, 60


def test_labels_of_cards_are_learned_and_an_analyst_overrules_a_model(kafka: str, tmp_path: Path) -> None:
    """A model's labels are all 1. An analyst's of a day later are right, and the model, which says 1 again, changes nothing."""
    payments, decisions = fresh_topic(kafka), fresh_topic(kafka, stem="decisions")
    fields = {"node": "card", "label": "fraud", "t": "decided_at", "source": "by"}
    content = configuration(
        tmp_path / "store", kafka, payments,
        {"name": decisions, "kind": "labels", "fields": fields, "sources": ["analyst", "model"]},
        lanes=[{"name": "hash", "algorithm": "hash", "parts": 1}],
    )  # fmt: skip
    random = Random(6)
    for day in range(DAYS):
        t = [T0 + day * DAY + number * (DAY // A_DAY) for number in range(A_DAY)]
        send(
            kafka,
            payments,
            [edge(random.randrange(20), 100 + random.randrange(10), moment) for moment in t],
        )
        said = [{"card": card, "fraud": 1, "decided_at": t[0], "by": "model"} for card in range(20)]
        if day:
            said += [
                {"card": card, "fraud": int(card < 10), "decided_at": t[0], "by": "analyst"}
                for card in range(20)
            ]
        send(kafka, decisions, [json.dumps(label).encode() for label in said])
        ran, _ = run_job(content)
        assert (ran.events, ran.refused) == (A_DAY, 0)
    config = configure(
        tmp_path, lane="hash", task="node-classification", model="cdgcn", strategy="whole",
        model_params={"hidden": 8, "signature": 4}, optimisation={"epochs": 1, "batch_size": 16},
    )  # fmt: skip
    assert run_to_end(config, 1)["snapshots"] == DAYS + 1
    lines = scored(tmp_path)
    by_day = [line["last_label_accuracy"] for line in lines if line["scored"]]
    assert len(by_day) >= DAYS - 2
    assert by_day[-1] == 1.0, "the labels of the last days are those of the analyst, and known before"
    assert min(by_day) < 0.7
    assert all(line["excluded"]["wrong_label"] == 0 for line in lines)
