"""The baselines on real graphs against their known figures, and what the trainer learns beside them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from real_data import DATA, real_file
from trainer_command import trainer

from freshet_graph.stream.store.from_file import default_interval
from freshet_graph.trainer.data.history import History, Inserts
from freshet_graph.trainer.scoring.baselines import edgebank, edgebank_window, recency, recency_popularity
from freshet_graph.trainer.scoring.metrics import batched_figures

pytestmark = pytest.mark.real

BASELINES = {
    "collegemsg": (0.764, 0.757, 0.929, 0.924),
    "jodie_wikipedia": (0.911, 0.876, 0.968, 0.966),
    "email_eu": (0.908, 0.910, 0.971, 0.970),
    "bitcoin_otc": (0.500, 0.500, 0.808, 0.811),
}
"""EdgeBank, the same with a window as long as the test, Recency, and Recency × popularity, AP:
70/15/15 by time quantile, one random negative, batches of 200."""

KEYS = ("edgebank_ap", "edgebank_window_ap", "recency_ap", "recency_popularity_ap")


@pytest.mark.parametrize("name", BASELINES)
def test_the_floors_are_those_that_are_known(name: str) -> None:
    table = pq.read_table(real_file(f"{name}.parquet"), columns=["src", "dst", "t"])
    src, dst, t = (table[column].to_numpy() for column in ("src", "dst", "t"))
    order = np.argsort(t, kind="stable")
    src, dst, t = src[order], dst[order], t[order]
    begin = int(np.searchsorted(t, np.quantile(t, 0.85), "right"))
    pool = np.unique(dst)
    negative = pool[np.random.default_rng(0).integers(0, len(pool), len(src))]
    num_nodes = int(max(src.max(), dst.max())) + 1

    def part(which: slice) -> Inserts:
        return Inserts(src[which], dst[which], t[which] * 1_000_000, np.zeros(len(t[which]), np.bool_))

    history = History()
    history.remember(part(slice(begin)), num_nodes)
    test = part(slice(begin, None))
    rows = np.repeat(np.arange(len(test)), 2)
    asked = np.stack([test.dst, negative[begin:]], axis=1).ravel()
    encounters = history.replay(test, num_nodes, rows, np.repeat(test.src, 2), asked)
    window = edgebank_window(encounters, float(t[-1] - t[begin]))
    baselines = edgebank(encounters), window, recency(encounters), recency_popularity(encounters)
    # of the window it is known that it is as long as the test, not from where to where that is counted
    for scores, expected, tolerance in zip(
        baselines, BASELINES[name], (0.004, 0.01, 0.004, 0.004), strict=True
    ):
        pairs = scores.reshape(-1, 2)
        found = batched_figures(pairs[:, 0], pairs[:, 1])["ap"]
        assert found == pytest.approx(expected, abs=tolerance)


def test_only_the_file_with_a_row_of_1970_has_another_default_interval_than_a_hundredth_of_its_span() -> None:
    real_file("slashdot_reply.parquet")
    changed = {}
    for file in DATA.glob("*.parquet"):
        t = pq.read_table(file, columns=["t"])["t"].to_numpy().astype(np.int64) * 1_000_000
        plain = max(1, -(-int(t.max() - t.min()) // 100))
        if default_interval(t) != plain:
            changed[file.stem] = [len(np.unique(t // each)) for each in (plain, default_interval(t))]
    assert changed == {"slashdot_reply": [6, 108]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["collegemsg", "bitcoin_otc"])
def test_evaluate_shows_the_known_floors_and_beats_recency(name: str, tmp_path: Path) -> None:
    file = real_file(f"{name}.parquet")
    result = trainer(
        tmp_path, "evaluate", "--data", str(file),
        lane="hash", model="sage-linear", strategy="vertex", model_params={"hidden": 64}, optimisation={"epochs": 2},
    )  # fmt: skip
    # a batch ends with its snapshot here, so baselines also know the end of the snapshot before
    for baseline, known in zip(KEYS, BASELINES[name], strict=True):
        assert known - 0.01 < result[baseline] < known + 0.02
    assert result["ap"] > result["recency_ap"]
    assert 0.5 < result["inductive_ap"] < 1


@pytest.mark.slow
def test_the_recommended_event_model_is_far_above_recency_and_resumes_its_best_epoch(tmp_path: Path) -> None:
    result = trainer(
        tmp_path, "evaluate", "--data", str(real_file("bitcoin_otc.parquet")),
        lane="hash", model="tgn-history", strategy="sequential", optimisation={"epochs": 2, "batch_size": 200},
    )  # fmt: skip
    assert result["recency_ap"] == pytest.approx(BASELINES["bitcoin_otc"][2], abs=0.01)
    assert result["ap"] > 0.88
    assert result["inductive_ap"] > 0.85 and result["transductive_ap"] > 0.85
