"""The end of a trainer that has not begun to train; loads nothing else, so that it is there first."""

import json
import os
import sys

NOTHING_LEARNED = {
    "snapshots": 0, "steps": 0, "events": 0, "loss": None, "seconds": 0.0, "first_tau": None, "last_tau": None,
}  # fmt: skip
"""Output of ``run --json`` if it must end before it has begun."""


def end_untrained() -> None:
    """End this process at once, with exit code 0: it has nothing to save."""
    is_printing = "RANK" not in os.environ or (
        os.environ["RANK"] == "0" and "FRESHET_RUN_OUTCOME" not in os.environ
    )
    if is_printing and sys.argv[1:2] == ["run"] and "--json" in sys.argv:
        os.write(1, f"{json.dumps(NOTHING_LEARNED)}\n".encode())
    os._exit(0)
