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


def test_payments_that_were_stopped_wait_for_a_person_and_are_no_negatives(
    kafka: str, tmp_path: Path
) -> None:
    """Cards below 10 are fraudulent. Every third payment is stopped, and of these a person looks at the first of each day."""
    payments, chargebacks = fresh_topic(kafka), fresh_topic(kafka, stem="chargebacks")
    fields = {"event_id": "payment", "label": "fraud", "t": "decided_at"}
    content = configuration(
        tmp_path / "store", kafka, payments, {"name": chargebacks, "kind": "labels", "fields": fields},
        lanes=[{"name": "hash", "algorithm": "hash", "parts": 1}], features={"edge": 2},
    )  # fmt: skip
    random, decided = Random(7), dict[int, list[bytes]]()
    stopped_days, reviewed = list[int](), 0
    for day in range(DAYS):
        rows = []
        for number in range(A_DAY):
            card, t = random.randrange(20), T0 + day * DAY + number * (DAY // A_DAY)
            payment, stopped = f"{day}-{number}", number % 3 == 0
            rows.append(
                edge(card, 100 + random.randrange(10), t, event_id=payment, features=[1.0, float(stopped)])
            )
            if stopped and number:
                stopped_days.append(day)
            elif card < 10 or stopped:
                reviewed += stopped and day + 1 < DAYS
                label = {"payment": payment, "fraud": card < 10, "decided_at": t + DAY}
                decided.setdefault(day + 1, []).append(json.dumps(label).encode())
        send(kafka, payments, rows)
        send(kafka, chargebacks, decided.get(day, []))
        run_job(content)
    config = configure(
        tmp_path, lane="hash", task="edge-classification", optimisation={"epochs": 1, "batch_size": 16},
        task_params={"first": 40, "negative_after_s": 2 * DAY, "decision": 1, "calibrate": True, "precision_k": 3,
                     "review_budget": 5, "window_s": 4 * DAY},
    )  # fmt: skip
    result = run_to_end(config, 1)
    assert result["snapshots"] == DAYS + 1
    lines = scored(tmp_path)
    last = lines[-1]
    of_window = {key: value for key, value in last.items() if key.startswith("window_")}
    assert of_window == {key: value for key, value in result.items() if key.startswith("window_")}
    assert sum(line["excluded"]["label_lost"] for line in lines) == 0
    # snapshots begin at midnight UTC, and the last one ends with the last payment
    left_out = sum(line["excluded"]["stopped"] for line in lines)
    assert stopped_days.count(0) * (DAYS - 3) < left_out < len(stopped_days)
    judged = sum(line["labels"]["given"] + line["labels"]["silence"] for line in lines)
    assert judged + left_out + last["labels"]["waiting"] == DAYS * A_DAY
    assert sum(line["labels"]["given"] for line in lines) == sum(
        len(of) for day, of in decided.items() if day < DAYS
    )
    assert reviewed > 3
    of_days = {line["labels"]["delay_s"].get("p50") for line in lines} - {None}
    assert of_days and all(DAY <= delay <= 2 * DAY for delay in of_days)
    # silence is judged after two days, so days count up to two days ago
    assert last["window_days"] in (2, 3)
    for name in ("precision_at_k", "recall_at_budget"):
        assert 0 < last[f"window_{name}"] <= last[f"window_{name}_ceiling"] <= 1
    assert last["window_average_precision"] > last["window_base_rate"] > 0.3
    assert 0 < last["window_brier"] < 0.4  # a few hundred events
