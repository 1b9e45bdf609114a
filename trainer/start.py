"""The command ``freshet-trainer``: its commands, or the sentence that says what is not installed."""

import signal
import sys

from freshet_graph.trainer.untrained import end_untrained


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


if __name__ == "__main__":
    main()
