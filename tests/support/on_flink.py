"""The configuration's key for a job on Flink."""

from typing import Any

from flink_server import flink, worker_pool  # noqa: F401  a fixture


def on_flink(job_server: str, **more: Any) -> dict[str, Any]:
    return {"name": "flink", "job_server": job_server, "parallelism": 2, "restart_delay_s": 0.2, **more}
