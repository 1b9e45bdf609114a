"""The command ``freshet-trainer``: its commands, or the sentence that says what is not installed."""

import json
import os
import signal
import sys

NOTHING_LEARNED = {
    "snapshots": 0, "steps": 0, "events": 0, "loss": None, "seconds": 0.0, "first_tau": None, "last_tau": None,
}  # fmt: skip
"""Output of ``run --json`` if it must end before it has begun."""


def main() -> None:
    """Entry point. SIGTERM ends ``run`` and ``score`` with exit code 0 also while they load."""
    if sys.argv[1:2] in (["run"], ["score"]):
        signal.signal(signal.SIGTERM, lambda *_: end_untrained())
    try:
        from freshet_graph.trainer.cli import main as run
    except ModuleNotFoundError as error:
        from freshet_graph.stream.optional import missing_extra

        sys.exit(f"error: {missing_extra('freshet-trainer', error, 'trainer')}")
    run()


def end_untrained() -> None:
    """End this process at once, with exit code 0: it has nothing to save."""
    is_printing = "RANK" not in os.environ or (
        os.environ["RANK"] == "0" and "FRESHET_RUN_OUTCOME" not in os.environ
    )
    if is_printing and sys.argv[1:2] == ["run"] and "--json" in sys.argv:
        os.write(1, f"{json.dumps(NOTHING_LEARNED)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
