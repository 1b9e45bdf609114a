"""Beam's worker pool on the loopback interface: ``python -m freshet_graph.stream.cluster.worker_pool [--port 50000]``.

Anyone who reaches a pool can run code in it, without a login and with the pool's environment, passwords included.
Beam's own entry point listens on every address of the machine. This one is reached only by processes of the same host
or pod, such as the task manager.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker.worker_pool_main import (
    BeamFnExternalWorkerPoolServicer,
    kill_process_gracefully,
)

from freshet_graph.stream.service.failure import Failure

HOST = "127.0.0.1"
PORT = 50_000
"""The port in Beam's examples."""

_THREADS = 8  # a request starts or stops a process, and is done


@contextmanager
def worker_pool(port: int = PORT) -> Iterator[str]:
    """Start and stop workers for the task managers of this host or pod; at the end the workers end.

    Args:
        port: 0: any free one.

    Yields:
        The address, as host:port.

    Raises:
        Failure: The port is taken.
    """
    pool = BeamFnExternalWorkerPoolServicer(use_process=True)
    # gRPC would share the port with another pool.
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=[("grpc.so_reuseport", 0)])
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    try:
        address = f"{HOST}:{server.add_insecure_port(f'{HOST}:{port}')}"
    except RuntimeError as error:
        raise Failure(f"port {port} of {HOST} is taken. Choose another --port.") from error
    server.start()
    try:
        yield address
    finally:
        server.stop(0).wait()
        for process in pool._worker_processes.values():
            kill_process_gracefully(process)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m freshet_graph.stream.cluster.worker_pool")
    parser.add_argument("--port", type=int, default=PORT, help="0: any free one")
    port = parser.parse_args(arguments).port
    # Beam starts its workers as `python`.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        with worker_pool(port) as address:
            print(f"serving at {address}", flush=True)  # noqa: T201  a program of its own
            over.wait()
    except Failure as failure:
        sys.exit(f"error: {failure}")


if __name__ == "__main__":
    main()
