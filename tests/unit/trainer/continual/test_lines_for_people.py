"""A trainer's lines on a terminal: when, how far, how good beside the baselines, how long yet."""

import re
from pathlib import Path

from small_trainers import config_for, run
from structlog.testing import capture_logs
from trainer_streams import make_lane

from freshet_graph.trainer.continual.journal import Remaining


def test_a_line_has_date_number_figure_baselines_and_the_time_that_is_left(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    with capture_logs() as lines:
        run(config_for(tmp_path, checkpoint_every=1))
    sentences = [line["for_people"] for line in lines if line["event"] == "snapshot"]
    figure, beside = (
        r"\d\.\d{3}",
        r"recency \d\.\d{3}, recency_popularity \d\.\d{3}, edgebank \d\.\d{3}, random \d\.\d{3}",
    )
    line = (
        rf"1970-01-01 00:00:0\d  snapshot 3 of 6  ap {figure} \({beside}\)  loss {figure}  \d+ (s|min) left"
    )
    assert re.fullmatch(line, sentences[2])
    assert len(sentences) == 6
    assert "left" not in sentences[-1], "the trainer has caught up"
    assert {line["for_people"] for line in lines if line["event"] == "checkpoint"} == {""}


def test_the_time_left_is_that_of_the_snapshots_to_come_as_the_last_ones_took() -> None:
    remaining = Remaining()
    assert remaining.after(4.0, lag=10) == 40.0
    assert remaining.after(2.0, lag=9) == 27.0
