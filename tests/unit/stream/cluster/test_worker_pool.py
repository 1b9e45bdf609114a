"""The pool that starts Flink's workers: it runs what it is told, so only its own host may tell it."""

import os
import signal
import socket
import subprocess
import sys

import grpc
import psutil
import pytest
from apache_beam.portability.api import beam_fn_api_pb2 as api
from apache_beam.portability.api import beam_fn_api_pb2_grpc as stubs

from freshet_graph.stream.cluster.worker_pool import worker_pool
from freshet_graph.stream.service.failure import Failure


def test_it_listens_on_the_loopback_interface_and_nowhere_else() -> None:
    command = [sys.executable, "-m", "freshet_graph.stream.cluster.worker_pool", "--port", "0"]
    bare = {key: value for key, value in os.environ.items() if key != "PATH"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=bare) as pool:
        try:
            assert pool.stdout is not None
            port = int(pool.stdout.readline().removeprefix("serving at 127.0.0.1:"))
            process = psutil.Process(pool.pid)
            here = [c.laddr for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
            assert [(at.ip.removeprefix("::ffff:"), at.port) for at in here] == [("127.0.0.1", port)]
            with grpc.insecure_channel(f"localhost:{port}") as channel:
                told = api.StartWorkerRequest(worker_id="one")
                told.control_endpoint.url = "127.0.0.1:1"  # nobody is there: the worker waits
                stub = stubs.BeamFnExternalWorkerPoolStub(channel)
                assert stub.StartWorker(told, timeout=30).error == ""
            (worker,) = process.children()
        finally:
            pool.send_signal(signal.SIGTERM)
        assert pool.wait(60) == 0
        assert not worker.is_running()


def test_a_port_that_is_taken_is_named() -> None:
    with worker_pool(0) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(Failure, match=r"is taken\. Choose another --port"), worker_pool(port):
            pass
    with socket.create_server(("127.0.0.1", port)):
        pass  # it is free again
