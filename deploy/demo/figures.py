"""What the two services say about themselves: one reading of their metrics endpoints."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

SCORERS = ("model", "recency", "recency_popularity", "edgebank", "random")


@dataclass
class Lane:
    """A lane's newest figures; None: not yet known."""

    cut: float | None = None
    balance: float | None = None
    saving: float | None = None
    lag: float | None = None


@dataclass
class Reading:
    """Both services at one moment.

    Attributes:
        at_s: Wall time.
        events: Events committed to the log.
        lag: Messages sent and not read.
        snapshots: Snapshots sealed.
        lanes: By name.
        scores: Average precision of the newest snapshot by scorer.
        trained: Events trained on.
        trainer_lag: Snapshots the trainer has not seen; None: it doesn't say yet.
        weights_t_s: Event time of the newest event in the weights.
    """

    at_s: float = field(default_factory=time.time)
    events: int = 0
    lag: int = 0
    snapshots: int = 0
    lanes: dict[str, Lane] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    trained: int = 0
    trainer_lag: float | None = None
    weights_t_s: float | None = None

    @property
    def weights_age_s(self) -> float | None:
        """Age of the weights: seconds since the newest event in them."""
        return None if not self.weights_t_s else max(0.0, self.at_s - self.weights_t_s)


Sample = tuple[str, dict[str, str], float]


def read(stream_url: str, trainer_url: str) -> Reading:
    """Ask both endpoints; one that does not answer (yet, or any more) leaves its figures out."""
    reading = Reading()
    for name, labels, value in [*samples(stream_url), *samples(trainer_url)]:
        match name.removeprefix("freshet_"):
            case "stream_events_total":
                reading.events += int(value)
            case "stream_consumer_lag_messages":
                reading.lag += int(value)
            case "lane_cut_ratio":
                _lane(reading, labels).cut = value
            case "lane_balance_ratio" if labels["kind"] == "node":
                _lane(reading, labels).balance = value
            case "lane_saving_ratio":
                _lane(reading, labels).saving = value
            case "lane_lag_snapshots":
                _lane(reading, labels).lag = value
            case "trainer_score" if labels["metric"] == "ap" and labels["subset"] == "all":
                reading.scores[labels["scorer"]] = value
            case "trainer_events_total" if labels["use"] == "trained":
                reading.trained += int(value)
            case "trainer_lag_snapshots":
                reading.trainer_lag = value
            case "trainer_weights_event_timestamp_seconds":
                reading.weights_t_s = value
    return reading


def samples(url: str) -> Iterator[Sample]:
    """All samples of an endpoint; none where it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def ready(url: str) -> bool:
    """Whether a service answers at all."""
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _lane(reading: Reading, labels: dict[str, str]) -> Lane:
    return reading.lanes.setdefault(labels["lane"], Lane())
