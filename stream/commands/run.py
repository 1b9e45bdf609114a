"""``freshet-stream run``: the stream job of one graph, until SIGTERM or until nothing more comes."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.version import version
from freshet_graph.stream.commands.config import require_parts
from freshet_graph.stream.service.collector import calm_collector
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.endpoint import Endpoint
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.memory import keep_memory
from freshet_graph.stream.service.output import (
    Debug,
    Json,
    LogFormat,
    LogLevel,
    finish,
    note,
    print_end,
    print_json,
)
from freshet_graph.stream.service.progress import Display, Rate, StatusLine

if TYPE_CHECKING:
    from freshet_graph.stream.cluster.job import ClusterJob
    from freshet_graph.stream.job.loop import Ran, StreamJob
    from freshet_graph.stream.metrics import StreamMetrics, Totals

_log = structlog.get_logger()

EXAMPLE_WIDTH = 100
"""Characters of each example in the status line; the end of the run and ``inspect`` show more."""

PUBLISHED_S = 60.0
"""How long the end of an idle job waits for unpublished exports."""


def run(
    file: Annotated[
        Path, typer.Option("--config", help="The configuration. See freshet-stream config --example.")
    ],
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            min=0,
            metavar="SECONDS",
            help="Once nothing has come for this long, seal open snapshots, bring all lanes up to date and end.",
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="If another process writes the store, wait until it is gone and take over, instead of failing.",
        ),
    ] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Read a graph's topics into its log and keep its lanes up to date, until SIGTERM.

    Example: freshet-stream run --config stream.yaml --until-idle 5 --json
    """
    from freshet_graph.stream.store.log.refusals import as_rows

    def body() -> None:
        configure_logs(level=log_level, form=log_format, debug=debug)
        config = load_config(StreamConfig, file, require_parts)  # before a broker is asked
        with ExitStack() as signals:  # as long as nothing is printed, so that a summary stays one
            result = run_job(config, until_idle_s=until_idle, standby=standby, debug=debug, signals=signals)
            _log.info("ended", graph=config.graph, **result)
            tell(config, result)
            require_accepted(result)
            require_unheld(result)

    def tell(config: StreamConfig, result: dict[str, Any]) -> None:
        if int(result["late"]) * 2 > int(result["events"]):
            note(
                f"note: {result['late']:,} of {result['events']:,} events were late: later events had sealed their "
                "snapshots. Give past events a topic and a store of their own"
            )
        if json:
            print_json(result)
            return
        rows = {key: value for key, value in result.items() if key not in ("refused_by_reason", "held")}
        print_end(f"{config.graph} in {config.store}", rows | as_rows(result["refused_by_reason"]))

    finish(body, debug=debug)


def run_job(
    config: StreamConfig, *, until_idle_s: float | None, standby: bool, debug: bool, signals: ExitStack
) -> dict[str, Any]:
    """Run the job with its endpoint and its display; SIGTERM and Ctrl-C end it cleanly.

    Args:
        config: What to run.
        until_idle_s: End once nothing came for this long; None: only a signal ends it.
        standby: If another process writes the store, wait until it is gone.
        debug: Let Beam and the Kafka client log.
        signals: Until it is closed, signals only ask the job to end.

    Returns:
        The keys of docs/cli.md.
    """
    _log.info(
        "starting",
        graph=config.graph,
        version=version(),
        config=config.digest(),
        store=config.store,
        topics=[topic.label for topic in config.kafka.topics],
        lanes=[lane.name for lane in config.lanes],
    )
    keep_memory()
    quiet_beam(debug)
    with ExitStack() as stack:
        from freshet_graph.stream.kafka.export_publisher import ExportPublishers
        from freshet_graph.stream.metrics import StreamMetrics
        from freshet_graph.stream.store.log.refusals import as_json

        metrics = StreamMetrics(config)
        publishers = ExportPublishers(config.store, config.publish, config.kafka, metrics)

        def begin() -> None:
            calm_collector()
            publishers.start()

        job, totals = (
            _on_flink(config, until_idle_s, standby, begin)
            if config.runner.name == "flink"
            else _here(config, metrics, until_idle_s, standby, begin, stack)
        )
        stack.callback(publishers.close)
        ran = _watched(config.graph, job, totals, signals)
        if ran.idle:
            publishers.drain(PUBLISHED_S)
    return {
        "snapshots": ran.snapshots,
        "events": ran.events,
        "refused": ran.refused,
        "late": ran.late,
        "seconds": ran.seconds,
        "events_per_s": ran.events_per_s,
        "ended": "idle" if ran.idle else "stopped",
        "duplicates": totals.duplicates,
        "in_history": totals.in_history,
        "refused_by_reason": as_json(totals.refused_by_reason),
        "held": list(ran.held_topics),
        "held_messages": ran.held_messages,
    }


def require_accepted(result: dict[str, Any]) -> None:
    """Check that an idle job with this result did not refuse everything that it read.

    Raises:
        Failure: It did; the sentence has an example of each reason.
    """
    taken = any(result[key] for key in ("events", "duplicates", "in_history"))
    if taken or not result["refused"] or result["ended"] != "idle":
        return
    reasons = "; ".join(
        f"{reason} {one['count']:,} ({one['example']})" for reason, one in result["refused_by_reason"].items()
    )
    raise Failure(
        f"everything that was read was refused: {reasons}. Correct the configuration or the producer. These messages are "
        "not read again. Send them again, or choose a new store"
    )


def require_unheld(result: dict[str, Any]) -> None:
    """Check that an idle job with this result has read all topics.

    Raises:
        Failure: One is held; the sentence has its reason and the key that mends it.
    """
    if result["held"] and result["ended"] == "idle":
        raise Failure(". ".join(result["held"]))


def _here(
    config: StreamConfig,
    metrics: "StreamMetrics",
    until_idle_s: float | None,
    standby: bool,
    on_begin: Callable[[], object],
    stack: ExitStack,
) -> "tuple[StreamJob | ClusterJob, Totals]":
    """The job in this process, with its endpoint."""
    from freshet_graph.stream.job.loop import StreamJob
    from freshet_graph.stream.job.readiness import readiness

    job = StreamJob(config, metrics, until_idle_s=until_idle_s, standby=standby, on_begin=on_begin)
    endpoint = Endpoint(config.metrics, metrics.registry, readiness(config, metrics, job.not_ready))
    stack.callback(endpoint.close)
    _log.info("metrics", url=endpoint.url)
    return job, metrics.totals


def _on_flink(
    config: StreamConfig, until_idle_s: float | None, standby: bool, on_begin: Callable[[], object]
) -> "tuple[StreamJob | ClusterJob, Totals]":
    """The job on a cluster; metrics are served by the process that writes the log."""
    from freshet_graph.stream.job.beam import load_beam

    load_beam()
    from freshet_graph.stream.cluster.job import ClusterJob

    if standby:
        raise Failure("--standby needs runner.name: local. Leave it out: Flink restarts what died")
    note(
        f"on Flink through {config.runner.job_server}; metrics are served by the workers (docs/operations.md)"
    )
    job = ClusterJob(config, until_idle_s=until_idle_s, on_begin=on_begin)
    return job, job.totals


def _watched(graph: str, job: "StreamJob | ClusterJob", totals: "Totals", signals: ExitStack) -> "Ran":
    """Run a job with its display until it ends or a signal ends it."""
    rate = Rate()

    def status() -> StatusLine:
        unread, per_s, behind = job.lag(), rate.of(totals.events), job.lane_lags()
        sentence = (
            f"{graph}: {totals.events:,} events ({per_s:,.0f}/s) in {totals.snapshots:,} "
            f"snapshot{'' if totals.snapshots == 1 else 's'} since the start, refused {totals.refused:,}{_examples(totals)}, "
            f"late {totals.late:,}{'' if unread is None else f', unread {unread:,}'}"
            f"{''.join(f', {name} behind {lag}' for name, lag in behind.items() if lag)}"
        )
        fields = {
            "graph": graph,
            "events": totals.events,
            "events_per_s": round(per_s, 1),
            "snapshots": totals.snapshots,
            "refused": totals.refused,
            "late": totals.late,
            "unread": unread,
            "behind": behind,
        }
        return StatusLine(sentence, "status", fields)

    signals.enter_context(_ending_on_signals(job.interrupt))
    with Display(status):
        return job.run()


def _examples(totals: "Totals") -> str:
    """Refusals by reason with an example each, for the status line."""
    refused = list(totals.refused_by_reason.items())  # another thread counts
    examples = (
        f"{reason} {one.count:,}: {shorten(one.example or '', EXAMPLE_WIDTH)}" for reason, one in refused
    )
    return f" ({'; '.join(examples)})" if refused else ""


def quiet_beam(debug: bool) -> None:
    """Silence tracebacks of Beam and the Kafka client, whose errors the job reports."""
    if not debug:
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
        logging.getLogger("kafka").setLevel(logging.CRITICAL)


@contextmanager
def _ending_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C call ``stop`` inside the block; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
