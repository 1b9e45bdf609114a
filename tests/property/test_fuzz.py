"""Hostile messages through the decoder in a process of its own: a seeded part of ``benchmarks/fuzz.py``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

FUZZ = Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz.py"
MESSAGES = 5_000


def fuzzed(messages: int, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, what was told, and standard error; memory is that of a second round over the same messages."""
    command = [
        "--messages",
        str(messages),
        "--rounds",
        "2",
        "--seed",
        "20261121",
        "--growth",
        "500",
    ]
    done = subprocess.run(
        [sys.executable, str(FUZZ), *command, *options],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout), done.stderr


def test_hostile_messages_crash_nothing_leave_nothing_and_each_ends_as_events_or_with_a_reason() -> None:
    code, told, errors = fuzzed(MESSAGES, "--leak", "50")
    assert code == 0, told.get("failure", errors)
    counts = told["counts"]
    ended = counts["taken, whole or in part"] + counts["refused, whole"] + counts["tombstones"]
    assert ended == counts["messages"] >= 2 * MESSAGES
    reasons = {name.removeprefix("reason ") for name in counts if name.startswith("reason ")}
    assert reasons >= {"not_json", "not_arrow", "wrong_type", "bad_id", "too_large", "not_finite"}


def test_a_leak_of_a_hundred_bytes_a_message_is_found() -> None:
    code, told, _ = fuzzed(1_500, "--hold", "100", "--leak", "50")
    assert code == 1
    assert "messages stayed, at most 50 a message" in told["failure"]
