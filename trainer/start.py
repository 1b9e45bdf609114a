"""The command ``freshet-trainer``: its commands, or the sentence that says what is not installed."""

import sys


def main() -> None:
    """Entry point."""
    try:
        from freshet_graph.trainer.cli import main as run
    except ModuleNotFoundError as error:
        from freshet_graph.stream.optional import missing_extra

        sys.exit(f"error: {missing_extra('freshet-trainer', error, 'trainer')}")
    run()


if __name__ == "__main__":
    main()
