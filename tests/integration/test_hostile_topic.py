"""Hostile messages through a real broker and the whole job: what the decoder says of them is what ends up where."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hostile import profiles
from streaming import configuration, fresh_topic, log_table, read_topic, run_job, send

from stream.decode.decoder import Decoder
from stream.microbatch import RawBatch
from stream.store.verify.store import verify

pytestmark = pytest.mark.integration

MESSAGES = 1_500


@pytest.mark.parametrize("number", [0, 3], ids=["json, int ids", "arrow, string ids"])
def test_nothing_of_a_hostile_topic_is_lost_or_counted_twice(kafka: str, tmp_path: Path, number: int) -> None:
    profile = profiles()[number]
    topic, dead = fresh_topic(kafka), fresh_topic(kafka, stem="dead")
    sent = [message for _, message in profile.messages(np.random.default_rng(7), MESSAGES)]
    send(kafka, topic, sent)
    raw = RawBatch(
        topic, 0, 0, MESSAGES, MESSAGES, pa.array(range(MESSAGES)), pa.array(sent, pa.large_binary())
    )
    told = Decoder(profile.topic, profile.config).decode(raw)
    content = configuration(
        tmp_path / "store", kafka, {"name": topic, "format": profile.topic.format},
        kafka={"dead_letters": dead}, features={"node": 4, "edge": 2}, ids=profile.config.ids,
    )  # fmt: skip
    ran, metrics = run_job({**content, "time_bounds": None})
    assert (ran.events, ran.refused) == (len(told.events), len(told.rejects))
    labels = {"graph": "test", "topic": topic}
    assert metrics.registry.get_sample_value("freshet_stream_tombstones_total", labels) == told.tombstones
    letters = [json.loads(value or b"") for _, value in read_topic(kafka, dead)]
    expected = told.rejects.select(["offset", "row", "reason"]).to_pylist()
    assert all(letter["sentence"] for letter in letters)
    assert [{key: letter[key] for key in expected[0]} for letter in letters] == expected
    columns = ["src", "dst", "t", "op"]
    kept = log_table(tmp_path / "store").select(columns).to_pylist()
    accepted = told.events.select(columns).to_pylist()
    assert sorted(map(str, kept)) == sorted(map(str, accepted))
    assert not verify(tmp_path / "store").problems
