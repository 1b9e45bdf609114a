"""``freshet-stream resend``: refused messages once more into their topics, for a stream that now can read them."""

import logging
import time
from pathlib import Path
from typing import Annotated

import typer

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.commands.config import require_parts
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import Debug, Json, finish, print_result
from freshet_graph.stream.service.progress import counting


def resend(
    config_file: Annotated[Path, typer.Option("--config", help="The stream's configuration.")],
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", help="Only messages refused for this, such as not_json. May be repeated."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TOPIC",
            help="Another topic, made if it doesn't exist. Default: each message's own.",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Send refused messages to their topics again, once the configuration or the format can read them.

    Each call sends all of them: give events an event_id and the stream a dedup_window_s, or call it once.

    Example: freshet-stream resend --config stream.yaml --reason missing_field --json
    """

    def body() -> None:
        from freshet_graph.stream.kafka.resend import refused_messages
        from freshet_graph.stream.kafka.resend import resend as send_again
        from freshet_graph.stream.store.log.reader import LogReader

        configure_logs(level="WARNING", as_json=False)
        if not debug:
            logging.getLogger("kafka").setLevel(logging.CRITICAL)  # an error is this command's own sentence
        config = load_config(StreamConfig, config_file, require_parts)
        refused = refused_messages(LogReader(config.store), config.kafka, reason or [])
        began_s = time.monotonic()
        with counting("{:,} of {:,} refused messages, {:,.0f} per second") as progress:
            resent = send_again(config.kafka, refused, to, progress)
        seconds = time.monotonic() - began_s
        result = {
            "refused": refused.num_rows,
            "sent": resent.sent,
            "gone": resent.gone,
            "partly": resent.partly,
            "seconds": seconds,
        }
        print_result(f"refused messages of {config.store}", result, as_json=json)

    finish(body, debug=debug)
