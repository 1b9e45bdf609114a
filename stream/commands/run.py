"""``freshet-stream run``: the stream job of one graph, until SIGTERM or until nothing more comes."""

import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.config import StreamConfig
from stream.commands.progress import Display, Rate
from stream.service.config_file import load_config
from stream.service.endpoint import Endpoint
from stream.service.failure import Failure
from stream.service.logs import configure_logs
from stream.service.memory import keep_memory
from stream.service.output import Debug, Json, finish, notes, print_json, print_table

if TYPE_CHECKING:
    from stream.cluster.job import ClusterJob
    from stream.cluster.totals import LogTotals
    from stream.job.loop import Ran, StreamJob
    from stream.metrics import StreamMetrics, Totals

PUBLISHED_S = 60.0
"""How long the end of an idle job waits for exports that are not published yet."""


def run(
    file: Annotated[
        Path, typer.Option("--config", help="The configuration; see freshet-stream config --example.")
    ],
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            min=0,
            metavar="SECONDS",
            help="Once nothing came for so long: seal what is open, bring all lanes up to date and end.",
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Where another process writes the store, wait until it is gone and take over, instead of failing.",
        ),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Read a graph's topics into its log and keep its lanes up to date, until SIGTERM.

    Example: freshet-stream run --config stream.yaml --until-idle 5 --json
    """
    from stream.partition.interface import PartitionError
    from stream.store.errors import StoreError

    def body() -> None:
        configure_logs(level="DEBUG" if debug else "INFO")
        config = load_config(StreamConfig, file)
        with ExitStack() as signals:  # as long as nothing is printed, so that a summary stays one
            result = run_job(config, until_idle_s=until_idle, standby=standby, debug=debug, signals=signals)
            tell(config, result)

    def tell(config: StreamConfig, result: dict[str, Any]) -> None:
        if int(result["late"]) * 2 > int(result["events"]):
            notes.print(
                f"note: {result['late']:,} of {result['events']:,} events were late: their snapshots had been sealed by "
                "events after them; past events want a topic and a store of their own",
                soft_wrap=True,
                highlight=False,
            )
        print_json(result) if json else print_table(f"{config.graph} in {config.store}", result)

    finish(body, StoreError, PartitionError, debug=debug)


def run_job(
    config: StreamConfig, *, until_idle_s: float | None, standby: bool, debug: bool, signals: ExitStack
) -> dict[str, Any]:
    """Run the job with its endpoint and its display; SIGTERM and Ctrl-C end it cleanly.

    Args:
        config: What to run.
        until_idle_s: End once nothing came for this long; None: only a signal ends it.
        standby: Where another process writes the store, wait until it is gone.
        debug: Let Beam and the Kafka client log.
        signals: Until it is closed, signals do no more than ask the job to end.

    Returns:
        The keys of docs/cli.md.
    """
    keep_memory()
    quiet_beam(debug)
    calm_collector()
    with ExitStack() as stack:
        from stream.kafka.export_publisher import ExportPublishers
        from stream.metrics import StreamMetrics

        metrics = StreamMetrics(config)
        job, totals = (
            _on_flink(config, until_idle_s, standby)
            if config.runner.name == "flink"
            else _here(config, metrics, until_idle_s, standby, stack)
        )
        publishers = ExportPublishers(config.store, config.publish, config.kafka, metrics).start()
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
    }


def _here(
    config: StreamConfig,
    metrics: "StreamMetrics",
    until_idle_s: float | None,
    standby: bool,
    stack: ExitStack,
) -> "tuple[StreamJob | ClusterJob, Totals | LogTotals]":
    """The job in this process, with its endpoint."""
    from stream.job.loop import StreamJob
    from stream.job.readiness import readiness

    job = StreamJob(config, metrics, until_idle_s=until_idle_s, standby=standby)
    endpoint = Endpoint(config.metrics, metrics.registry, readiness(config, metrics, job.not_ready))
    stack.callback(endpoint.close)
    notes.print(
        f"metrics: {endpoint.url}/metrics  health: {endpoint.url}/readyz", soft_wrap=True, highlight=False
    )
    return job, metrics.totals


def _on_flink(
    config: StreamConfig, until_idle_s: float | None, standby: bool
) -> "tuple[StreamJob | ClusterJob, Totals | LogTotals]":
    """The job on a cluster; metrics are served where the log is written."""
    from stream.cluster.job import ClusterJob

    if standby:
        raise Failure("--standby is for runner.name: local; on Flink, Flink starts what died again")
    notes.print(
        f"on Flink through {config.runner.job_server}; metrics are served by the workers (docs/operations.md)",
        soft_wrap=True,
        highlight=False,
    )
    job = ClusterJob(config, until_idle_s=until_idle_s)
    return job, job.totals


def _watched(
    graph: str, job: "StreamJob | ClusterJob", totals: "Totals | LogTotals", signals: ExitStack
) -> "Ran":
    """Run a job with its display until it ends or a signal ends it."""
    rate = Rate()

    def line() -> str:
        behind = "".join(f", {name} behind {lag}" for name, lag in job.lane_lags().items() if lag)
        return (
            f"{graph}: {totals.events:,} events ({rate.of(totals.events):,.0f}/s), "
            f"{totals.snapshots:,} snapshots, refused {totals.refused:,}, late {totals.late:,}, "
            f"unread {job.lag():,}{behind}"
        )

    signals.enter_context(_ending_on_signals(job.interrupt))
    with Display(line):
        return job.run()


def calm_collector() -> None:
    """Keep the cyclic collector off what the imports made: every poll's many records would have it walk all of that."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def quiet_beam(debug: bool) -> None:
    """Beam warns at import about packages for clouds that nobody uses here, and logs tracebacks of what we report."""
    if not debug:
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.disable(logging.WARNING)
    import stream.pipeline  # noqa: F401

    logging.disable(logging.NOTSET)


@contextmanager
def _ending_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C call ``stop`` inside the block; where signals can't be caught, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
