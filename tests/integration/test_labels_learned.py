"""Labels of a topic, from a live broker to the figures of a trainer."""

import json
from pathlib import Path
from random import Random

import pytest
from streaming import T0, configuration, edge, fresh_topic, run_job, send
from trainer_processes import configure, run_to_end, scored

pytestmark = pytest.mark.integration

DAY = 86_400
DAYS, A_DAY = 8, 60


def test_chargebacks_judge_the_payments_of_their_ids(kafka: str, tmp_path: Path) -> None:
    """Cards 0 to 9 are fraudulent. Labels of a day come two days later, with one of a payment that never was."""
    payments, chargebacks = fresh_topic(kafka), fresh_topic(kafka, stem="chargebacks")
    fields = {"event_id": "payment", "label": "fraud", "t": "decided_at"}
    content = configuration(
        tmp_path / "store", kafka, payments, {"name": chargebacks, "kind": "labels", "fields": fields},
        lanes=[{"name": "hash", "algorithm": "hash", "parts": 1}],
    )  # fmt: skip
    random, decided = Random(5), dict[int, list[bytes]]()
    for day in range(DAYS):
        rows = []
        for number in range(A_DAY):
            card, t = random.randrange(20), T0 + day * DAY + number * (DAY // A_DAY)
            payment = f"{day}-{number}"
            rows.append(edge(card, 100 + random.randrange(10), t, event_id=payment))
            label = {"payment": payment, "fraud": card < 10, "decided_at": t + 2 * DAY}
            decided.setdefault(day + 2, []).append(json.dumps(label).encode())
        send(kafka, payments, rows)
        send(kafka, chargebacks, decided.get(day, []))
        ran, _ = run_job(content)
        assert (ran.events, ran.refused) == (A_DAY, 0)
    config = configure(
        tmp_path, lane="hash", task="edge-classification", task_params={"first": 40},
        optimisation={"epochs": 1, "batch_size": 16},
    )  # fmt: skip
    assert run_to_end(config, 1)["snapshots"] == DAYS + 1  # the first begins within a day
    lines = scored(tmp_path)
    assert sum("average_precision" in line for line in lines) >= 2
    assert lines[-1]["average_precision"] > lines[-1]["base_rate"]
    assert lines[-1]["label_share_average_precision"] > 0.9
    assert all(line["excluded"]["label_lost"] == 0 for line in lines)
