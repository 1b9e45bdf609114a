"""Payments with frauds: the patterns have the shapes that they are known by, labels come later, and nothing depends on them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from fraud_baselines import baseline_figures
from typer import Typer
from typer.testing import CliRunner

from freshet_graph.stream.commands.synth import synth
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.synthetic import START_S, FraudOptions, payments
from freshet_graph.stream.synthetic.payments import DEFAULT_PAYMENTS_SPAN_S, PATTERNS, SOURCES

DAY_S = 86_400.0
NODES, EDGES = 2_000, 150_000
MERCHANTS = 200


class Drawn:
    """A whole stream: ``events`` with columns row, pattern and case in order of time, ``labels`` with the row of their event."""

    def __init__(self, nodes: int = NODES, edges: int = EDGES, *, seed: int = 0, **given: Any) -> None:
        options = FraudOptions(**{k: v for k, v in given.items() if k in FraudOptions.model_fields})
        others = {k: v for k, v in given.items() if k not in FraudOptions.model_fields}
        self.parts = list(payments(nodes, edges, options=options, seed=seed, **others))
        self.events, self.labels, self.truth = (
            pa.concat_tables([part[i] for part in self.parts]) for i in range(3)
        )
        self.src, self.dst, self.t, self.amount = (
            self.events[name].to_numpy() for name in ("src", "dst", "t", "weight")
        )
        row = {name: i for i, name in enumerate(self.events["event_id"].to_pylist())}
        self.pattern, self.case = np.full(len(self.t), "", object), np.full(len(self.t), -1)
        rows = [row[name] for name in self.truth["event_id"].to_pylist()]
        self.pattern[rows], self.case[rows] = self.truth["pattern"].to_pylist(), self.truth["case"].to_numpy()
        self.is_fraud = self.pattern != ""
        self.labelled = np.array([row[name] for name in self.labels["event_id"].to_pylist()], int)

    def cases(self, pattern: str) -> list[np.ndarray]:
        """Rows of each case, in order of time."""
        rows = np.flatnonzero(self.pattern == pattern)
        return [rows[self.case[rows] == case] for case in np.unique(self.case[rows])]


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return Drawn(takeover=0.01, stolen=0.01, mules=0.01, rings=0.01)


def test_there_are_as_many_payments_as_asked_for_in_order_of_time_with_their_own_ids(drawn):
    assert len(drawn.parts) > 1
    assert len(drawn.t) == EDGES == len(set(drawn.events["event_id"].to_pylist()))
    assert (np.diff(drawn.t) >= 0).all()
    assert drawn.t[0] >= START_S
    assert drawn.t[-1] < START_S + DEFAULT_PAYMENTS_SPAN_S
    assert (drawn.src < NODES - MERCHANTS).all()
    assert (drawn.dst < NODES).all()
    assert (drawn.src != drawn.dst).all()
    assert (drawn.amount >= np.float32(0.01)).all()
    assert (drawn.events["op"].to_numpy() == 1).all()


def test_the_same_seed_gives_the_same_parts_and_another_others():
    one, same, other = (list(payments(300, 20_000, seed=seed)) for seed in (4, 4, 5))
    assert all(a.equals(b) for x, y in zip(one, same, strict=True) for a, b in zip(x, y, strict=True))
    assert not one[0].events.equals(other[0].events)


@pytest.mark.parametrize("share", [0.002, 0.02])
def test_each_pattern_has_about_its_share(share):
    drawn = Drawn(5_000, 200_000, seed=2, **dict.fromkeys(PATTERNS, share))
    for pattern in PATTERNS:
        assert 0.7 < np.mean(drawn.pattern == pattern) / share < 1.3, pattern


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_share_of_zero_switches_a_pattern_off_and_leaves_the_cases_of_others(pattern):
    every, fewer = (Drawn(500, 20_000, seed=3, **given) for given in ({}, {pattern: 0}))
    assert pattern in every.pattern
    assert pattern not in fewer.pattern
    for other in {*PATTERNS} - {pattern, "takeover"}:
        for x, y in zip(every.cases(other), fewer.cases(other), strict=True):
            for column in ("src", "dst", "t", "amount"):
                assert (getattr(every, column)[x] == getattr(fewer, column)[y]).all()


def test_without_any_pattern_no_payment_is_a_fraud():
    drawn = Drawn(300, 5_000, mistaken=0, **dict.fromkeys(PATTERNS, 0))
    assert len(drawn.t) == 5_000
    assert len(drawn.truth) == len(drawn.labels) == 0


def test_activity_is_heavy_tailed_with_rhythm_and_habits(drawn):
    for ends in (drawn.src, drawn.dst):
        counts = np.sort(np.bincount(ends))[::-1]
        assert counts[: len(counts) // 20].sum() > 0.15 * EDGES
    is_shop = drawn.dst >= NODES - MERCHANTS
    assert 0.8 < is_shop.mean() < 0.88
    hours = np.bincount((drawn.t % DAY_S // 3600).astype(int), minlength=24)
    assert hours[17:20].sum() > 5 * hours[1:4].sum()
    days = ((drawn.t - START_S) // DAY_S).astype(int)
    weekday = np.bincount(days % 7) / np.bincount(np.arange(90) % 7)
    assert weekday[4] > 1.2 * weekday[6]  # Fridays, Sundays
    pairs = drawn.src * NODES + drawn.dst
    late, early = (~drawn.is_fraud) & (days >= 45), days < 45
    assert np.isin(pairs[late], pairs[early]).mean() > 0.8
    spread = np.log(drawn.amount[~drawn.is_fraud])
    assert 0.7 < spread.std() < 1.3
    assert abs(np.mean((spread - spread.mean()) ** 3)) < 0.3 * spread.std() ** 3  # lognormal: not skewed


def test_all_payments_of_a_merchant_are_frauds_while_it_is_taken_over(drawn):
    cases = drawn.cases("takeover")
    assert len(cases) > 3
    for rows in cases:
        merchant, begin, end = drawn.case[rows[0]], drawn.t[rows[0]], drawn.t[rows[-1]]
        assert merchant >= NODES - MERCHANTS
        assert (drawn.dst[rows] == merchant).all()
        meanwhile = (drawn.dst == merchant) & (drawn.t >= begin) & (drawn.t <= end)
        assert drawn.is_fraud[meanwhile].all()
        assert end - begin <= 42 * DAY_S


def test_a_stolen_card_pays_larger_amounts_at_new_merchants_within_days(drawn):
    cases = drawn.cases("stolen")
    plain = ~drawn.is_fraud
    mean = np.bincount(drawn.src[plain], np.log(drawn.amount[plain])) / np.bincount(drawn.src[plain])
    raised, new = [], []
    for rows in cases:
        (account,) = np.unique(drawn.src[rows])
        assert 3 <= len(rows) <= 12
        assert drawn.t[rows[-1]] - drawn.t[rows[0]] <= 4 * DAY_S
        assert (drawn.dst[rows] >= NODES - MERCHANTS).all()
        usual = np.bincount(drawn.dst[plain & (drawn.src == account)], minlength=NODES)
        new += (usual[drawn.dst[rows]] <= 0.03 * usual.sum()).tolist()
        raised += (np.log(drawn.amount[rows]) - mean[account]).tolist()
    assert np.mean(new) > 0.9
    assert 1.5 < np.exp(np.median(raised)) < 4


def test_a_mule_passes_on_within_hours_most_of_what_it_got(drawn):
    for rows in drawn.cases("mules"):
        mule = drawn.dst[rows[0]]
        got, gave = rows[drawn.dst[rows] == mule], rows[drawn.src[rows] == mule]
        assert len(got) + len(gave) == len(rows)
        assert 3 <= len(got) <= 10
        assert 1 <= len(gave) <= 4
        assert drawn.t[got[-1]] < drawn.t[gave[0]]
        assert drawn.t[rows[-1]] - drawn.t[rows[0]] < 17 * 3600
        assert 0.9 - 0.01 < drawn.amount[gave].sum() / drawn.amount[got].sum() < 0.98 + 0.01


def test_a_ring_closes_with_nearly_equal_amounts(drawn):
    assert len(drawn.cases("rings")) > 50
    for rows in drawn.cases("rings"):
        src, dst, amount = drawn.src[rows], drawn.dst[rows], drawn.amount[rows].astype(float)
        assert (src[1:] == dst[:-1]).all()
        assert dst[-1] == src[0]
        assert 3 <= len(np.unique(src)) <= 8
        assert len(rows) % len(np.unique(src)) == 0
        assert amount.max() / amount.min() < 1.05 / 0.95 + 0.02
        assert np.diff(drawn.t[rows]).max() <= 12 * 3600 + 1


def test_a_label_comes_after_its_payment_with_the_delay_asked_for(drawn):
    decided, source = drawn.labels["t"].to_numpy(), np.array(drawn.labels["source"].to_pylist())
    for part in drawn.parts:
        assert (np.diff(part.labels["t"].to_numpy()) >= 0).all()
    assert (np.diff(decided) >= 0).all()
    delay = decided - drawn.t[drawn.labelled]
    assert (delay > 0).all()
    first = source == SOURCES[0]
    assert 6 < np.median(delay[first]) / DAY_S < 8
    assert 0.7 < np.log(delay[first]).std() < 0.9


def test_labels_are_missing_mistaken_and_corrected_as_often_as_asked_for():
    drawn = Drawn(seed=1, never=0.2, cleared=0.3, mistaken=0.01, corrected=0.5)
    label = drawn.labels["label"].to_numpy()
    decided, source = drawn.labels["t"].to_numpy(), np.array(drawn.labels["source"].to_pylist())
    first, later = (np.flatnonzero(source == name) for name in SOURCES)
    of_first = dict(zip(drawn.labelled[first].tolist(), first.tolist(), strict=True))
    assert len(of_first) == len(first)  # one of each source
    of_fraud = drawn.is_fraud[drawn.labelled[first]]
    assert 0.75 < of_fraud.sum() / drawn.is_fraud.sum() < 0.85
    assert 0.25 < np.mean(label[first][of_fraud] == 0) < 0.35
    assert 0.008 < (~of_fraud).sum() / (~drawn.is_fraud).sum() < 0.012
    assert (label[first][~of_fraud] == 1).all()
    wrong = (label[first] == 1) != of_fraud
    assert 0.45 < len(later) / wrong.sum() < 0.55
    for at, row in zip(later, drawn.labelled[later], strict=True):
        before = of_first[row]
        assert decided[before] < decided[at]
        assert label[at] == drawn.is_fraud[row] != label[before]


def test_payments_and_truth_do_not_depend_on_how_labels_come():
    one = Drawn(500)
    other = Drawn(500, never=0.5, cleared=0.5, mistaken=0.02, corrected=0, delay_days=1, delay_sigma=2)
    assert len(one.parts) > 1  # labels of the first are drawn before payments of the second
    assert one.events.equals(other.events)
    assert one.truth.equals(other.truth)
    assert not one.labels.equals(other.labels)


def test_no_simple_score_finds_the_frauds_and_all_of_them_together_find_some():
    drawn = Drawn(1_500, 40_000)
    figures = baseline_figures(drawn.events, drawn.labels, drawn.truth)
    together = figures.pop("all of them")["all"]
    assert all(0.35 < auroc < 0.85 and ap < 0.3 for auroc, ap in (some["all"] for some in figures.values()))
    assert figures["amount"]["all"][0] > 0.6
    assert together[0] > 0.8
    assert together[1] > 6 * drawn.is_fraud.mean()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": 199}, "at least 200 nodes, found 199"),
        ({"span_s": 13 * DAY_S}, "at least 14 days"),
        ({"edges": 20}, "because a case has several. Take more edges"),
    ],
)
def test_impossible_streams_are_refused_before_anything_is_drawn(given, words):
    with pytest.raises(ValueError, match=words):
        payments(**{"nodes": 300, "edges": 5_000, **given})


def run(*arguments: str) -> tuple[int, str, str]:
    app = Typer()
    app.command()(synth)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", "").split())


SMALL = ("--fraud", "--nodes", "300", "--edges", "6000", "--json")


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_synth_writes_payments_labels_and_truth_that_read_back(tmp_path: Path, suffix):
    out = tmp_path / f"p.{suffix}"
    code, text, error = run(*SMALL, "--seed", "3", "--param", "rings=0", "--out", str(out))
    assert (code, error) == (0, "")
    result = json.loads(text)
    file = read_events(out)
    assert (result["edges"], result["events"]) == (6_000, 6_000) == (len(file.events),) * 2
    assert file.sorted_by_time
    assert file.events["event_id"].null_count == 0
    drawn = Drawn(300, 6_000, seed=3, rings=0)
    assert file.events["weight"].to_numpy().tolist() == drawn.amount.tolist()
    assert result["frauds"] == {name: int((drawn.pattern == name).sum()) for name in PATTERNS}
    assert result["labels"] == len(drawn.labels)
    for key, table in (("labels_file", drawn.labels), ("truth_file", drawn.truth)):
        path = Path(result[key])
        assert path == tmp_path / f"p-{key.partition('_')[0]}.{suffix}"
        read = pa.csv.read_csv(path) if suffix == "csv" else pa.parquet.read_table(path)
        assert read.column_names == table.column_names
        assert read["event_id"].to_pylist() == table["event_id"].to_pylist()


def test_the_same_arguments_write_the_same_bytes(tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        assert run(*SMALL, "--out", str(tmp_path / folder / "p.parquet"))[0] == 0
    for name in ("p", "p-labels", "p-truth"):
        assert (tmp_path / "a" / f"{name}.parquet").read_bytes() == (
            tmp_path / "b" / f"{name}.parquet"
        ).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--param", "ringz=0.1"], 1, "synth --param: unknown key ringz. Did you mean rings?"),
        (["--param", "rings=0.5"], 1, "rings: must be at most 0.05"),
        (["--span", "86400"], 1, "the span must be at least 14 days"),
        (["--shape", "rmat"], 2, "without --features and --shape"),
        (["--features", "3"], 2, "without --features and --shape"),
    ],
)
def test_synth_refuses_options_that_do_not_go_with_fraud(tmp_path, arguments, code, words):
    out = tmp_path / "x.parquet"
    exit_code, _, error = run(*SMALL, *arguments, "--out", str(out))
    assert exit_code == code
    assert words in error
    assert not list(tmp_path.iterdir())


def test_params_go_with_fraud_only(tmp_path):
    code, _, error = run(
        "--nodes", "5", "--edges", "5", "--param", "rings=0", "--out", str(tmp_path / "x.csv")
    )
    assert code == 2
    assert "--param goes with --fraud" in error
