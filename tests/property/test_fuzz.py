"""Hostile messages through the decoder in a process of its own: a seeded part of ``benchmarks/fuzz.py``."""

import json
import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz.py"
MESSAGES = 5_000


def test_hostile_messages_crash_nothing_and_each_ends_as_events_or_with_a_reason() -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--messages", str(MESSAGES), "--seed", "20261121", "--growth", "500", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert done.returncode == 0, told.get("failure", done.stderr)
    counts = told["counts"]
    ended = counts["taken, whole or in part"] + counts["refused, whole"] + counts["tombstones"]
    assert ended == counts["messages"] >= MESSAGES
    reasons = {name.removeprefix("reason ") for name in counts if name.startswith("reason ")}
    assert reasons >= {"not_json", "not_arrow", "wrong_type", "bad_id", "too_large", "not_finite"}
