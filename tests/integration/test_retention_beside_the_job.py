"""Old snapshots go while the job runs; a lane and the log go on from what is kept."""

from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Producer
from streaming import T0, configuration, edge, run_job

from freshet_graph.stream.job import open_log
from freshet_graph.stream.kafka.embedded import EmbeddedBroker
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.verify.store import verify


def test_the_job_keeps_what_retention_says_and_goes_on_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_log, "PAUSE_S", 0.0)
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2}]
    rng = np.random.default_rng(0)
    with EmbeddedBroker() as broker:
        content = configuration(
            tmp_path,
            broker.address,
            "edges",
            kafka={"api_version": [2, 1]},
            retention={"snapshots": 5},
            lanes=lanes,
        )
        producer = Producer({"bootstrap.servers": broker.address})
        for run in range(2):
            days = range(run * 20, run * 20 + 20)
            pairs = [(day, *rng.integers(0, 30, 2).tolist()) for day in days for _ in range(20)]
            for day, a, b in pairs:
                producer.produce("edges", edge(a, b, T0 + 86_400 * day), partition=0)
            assert producer.flush(30) == 0
            run_job(content)
            assert verify(tmp_path).problems == []
    found = inspect(tmp_path)
    assert (found["snapshots"], found["events"]) == (40, 800)
    assert found["lanes"]["hash"]["lag"] == 0
    assert 5 <= found["kept"] < 40
