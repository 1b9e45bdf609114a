"""``evaluate`` in a program: its configuration is an object, a file or a dict, and an error is a sentence."""

from pathlib import Path

import pytest
import yaml
from offline_protocol import SHARES, write_events

from freshet_graph import FreshetError, evaluate
from freshet_graph.schemas.trainer_config import TrainerConfig

KEYS = {
    "model": "tgn-history",
    "model_params": {"memory": 8, "time_width": 8},
    "strategy": "sequential",
    "lane": "hash",
    "optimisation": {"epochs": 1, "batch_size": 50},
    "device": "cpu",
}


def test_a_configuration_its_file_and_its_keys_give_the_same_figures(tmp_path: Path) -> None:
    data, file = write_events(tmp_path / "events.parquet"), tmp_path / "trainer.yaml"
    file.write_text(yaml.safe_dump(KEYS))
    results = [
        evaluate(given, data, shares=SHARES) for given in (TrainerConfig(**KEYS), file, str(file), KEYS)
    ]
    scores = [result["ap"] for result in results if result is not None]
    assert scores == scores[:1] * 4


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({**KEYS, "colour": "red"}, "configuration: "),
        ("absent.yaml", "configuration absent.yaml cannot be read"),
        (3, "a configuration is a TrainerConfig, the path of its file or a dict of its keys, found int"),
    ],
)
def test_another_one_is_refused_before_the_data_is_read(given: object, sentence: str) -> None:
    with pytest.raises(FreshetError) as refused:
        evaluate(given, "absent.parquet")  # type: ignore[arg-type]
    assert str(refused.value).startswith(sentence)


def test_a_moment_of_a_file_is_refused_without_an_option_of_the_command(tmp_path: Path) -> None:
    data = write_events(tmp_path / "events.parquet")
    with pytest.raises(FreshetError, match=r"is not a store, so it has no moment 5\. Leave"):
        evaluate(KEYS, data, as_of=5)
