"""Negatives in a file and other models' scores: the same protocol, whoever is judged by it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from offline_protocol import BASELINES, FIGURES, SHARES, config_for, write_events
from structlog.testing import capture_logs

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.evaluation.foreign_scores import ForeignScores
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import batched_figures, ranks_among


def judged(data: str, *, shares: tuple[float, float, float] = SHARES, seed: int = 0, **more: object) -> dict:
    with capture_logs():
        result = evaluate(config_for(seed=seed), data, Ranks(), shares=shares, seeds=1, **more)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_events(tmp_path_factory.mktemp("data") / "events.parquet")


@pytest.fixture(scope="module")
def made(data: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict]:
    """A file of negatives, and the figures of the run that made it."""
    path = str(tmp_path_factory.mktemp("negatives") / "negatives.parquet")
    return path, judged(data, negatives=path)


def test_stored_negatives_are_those_that_would_be_drawn_and_serve_every_seed(
    data: str, made: tuple[str, dict]
) -> None:
    path, first = made
    content = Path(path).read_bytes()
    drawn = judged(data)
    assert [drawn[name] for name in FIGURES] == [first[name] for name in FIGURES]
    other = judged(data, seed=1, negatives=path)
    assert Path(path).read_bytes() == content
    assert [other[name] for name in BASELINES] == [first[name] for name in BASELINES]
    assert other["ap"] != first["ap"]
    assert [judged(data, seed=1)[name] for name in BASELINES] != [first[name] for name in BASELINES]


def test_the_file_has_a_row_an_event_and_says_what_it_is(data: str, made: tuple[str, dict]) -> None:
    table, events = pq.read_table(made[0]), pq.read_table(data)
    inserts = events.filter(pc.equal(events["op"], 1)).sort_by("t")
    for name in ("src", "dst"):
        assert table[name].to_pylist() == inserts[name].take(table["event"]).to_pylist()
    assert set(table["part"].to_pylist()) == {"validation", "test"}
    assert not pc.any(pc.equal(table["random"], table["dst"])).as_py()
    ranked = table.filter(table["candidates"].is_valid())
    assert set(ranked["part"].to_pylist()) == {"test"}
    assert {len(row) for row in ranked["candidates"].to_pylist()} == {50}
    assert table["historical_src"].null_count < len(table) / 2
    assert b'"seed": 0' in table.schema.metadata[b"freshet.negatives"]


def changed(path: str, to: Path, **columns: object) -> str:
    table = pq.read_table(path)
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.remove_column(at) if values is None else table.set_column(at, name, values)
    pq.write_table(table, to)
    return str(to)


def test_negatives_of_other_data_or_another_split_are_refused_in_a_sentence(
    data: str, made: tuple[str, dict], tmp_path: Path
) -> None:
    path = made[0]
    with pytest.raises(Failure, match=r"made for other data or another --split: .* event \d+ .* has no row"):
        judged(data, shares=(0.5, 0.2, 0.3), negatives=path)
    with pytest.raises(Failure, match=r"was made for other data.*Give a path that does not exist yet"):
        judged(write_events(tmp_path / "other.parquet", seed=5), negatives=path)
    table = pq.read_table(path)
    t = table["t"].to_pylist()
    wrong = changed(path, tmp_path / "a", t=pa.array([*t[:-1], t[-1] + 1]))
    with pytest.raises(
        Failure, match=rf"event {table['event'][-1]} has t {t[-1]}, the file says {t[-1] + 1}"
    ):
        judged(data, negatives=wrong)
    stranger = changed(path, tmp_path / "b", random=pa.array([777] * len(table)))
    with pytest.raises(Failure, match="column random names 777, which is not a node of the data"):
        judged(data, negatives=stranger)
    with pytest.raises(Failure, match="has no column random"):
        judged(data, negatives=changed(path, tmp_path / "c", random=None))
    (tmp_path / "d").write_text("no Parquet")
    with pytest.raises(Failure, match="cannot be read"):
        judged(data, negatives=str(tmp_path / "d"))
    with pytest.raises(Failure, match="cannot be written"):
        judged(data, negatives=str(tmp_path / "nowhere" / "n.parquet"))


def foreign(path: str, seed: int = 3) -> pa.Table:
    """Scores of a model that knows something, for all rows of a file of negatives."""
    table = pq.read_table(path)
    rng = np.random.default_rng(seed)
    count = len(table)
    candidates = [
        None if row is None else rng.normal(0, 1, len(row)).tolist()
        for row in table["candidates"].to_pylist()
    ]
    return pa.table(
        {
            "event": table["event"],
            "score": rng.normal(1, 1, count),
            "random_score": rng.normal(0, 1, count),
            "historical_score": rng.normal(0.5, 1, count),
            "candidate_scores": pa.array(candidates, pa.list_(pa.float64())),
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_another_models_scores_are_judged_by_the_same_figures_beside_the_same_floors(
    kind: str, data: str, made: tuple[str, dict], tmp_path: Path
) -> None:
    path, ours = made
    scores = foreign(path)
    shuffled = scores.take(np.random.default_rng(0).permutation(len(scores)))
    file = tmp_path / f"theirs.{kind}"
    if kind == "parquet":
        pq.write_table(shuffled, file)
    else:
        texts = [
            None if row is None else " ".join(map(str, row))
            for row in shuffled["candidate_scores"].to_pylist()
        ]
        pyarrow.csv.write_csv(shuffled.set_column(4, "candidate_scores", pa.array(texts)), file)
    found = judged(data, negatives=path, scores=str(file))
    assert [found[name] for name in BASELINES] == [ours[name] for name in BASELINES]
    assert "random_ap" not in found
    assert found["model"] == "theirs"

    negatives = pq.read_table(path)
    test = np.array([part == "test" for part in negatives["part"].to_pylist()])
    positive, random = (scores[name].to_numpy()[test] for name in ("score", "random_score"))
    assert found["scored"] == test.sum()
    assert found["ap"] == pytest.approx(batched_figures(positive, random)["ap"])
    assert found["auc"] == pytest.approx(batched_figures(positive, random)["auc"])
    lists = [row for row in scores["candidate_scores"].to_pylist() if row is not None]
    true = [
        score
        for score, row in zip(
            scores["score"].to_pylist(), scores["candidate_scores"].to_pylist(), strict=True
        )
        if row is not None
    ]
    ranks = ranks_among(np.array(true), np.array(lists))
    assert found["mrr"] == pytest.approx((1 / ranks).mean())
    drawn = test & negatives["historical_src"].is_valid().to_numpy()
    historical = scores["historical_score"].to_numpy()[drawn]
    assert found["historical_ap"] == pytest.approx(
        batched_figures(scores["score"].to_numpy()[drawn], historical)["ap"]
    )


def test_scores_that_lack_something_are_refused_or_their_figures_absent(
    data: str, made: tuple[str, dict], tmp_path: Path
) -> None:
    path = made[0]
    scores = foreign(path)

    def file(table: pa.Table) -> str:
        pq.write_table(table, tmp_path / "s.parquet")
        return str(tmp_path / "s.parquet")

    few = judged(data, negatives=path, scores=file(scores.select(["event", "score", "random_score"])))
    assert "ap" in few
    assert not {"mrr", "historical_ap", "hits_at_10"} & few.keys()
    with pytest.raises(
        Failure, match=r"lacks 1 of \d+ test events, the first is event \d+\. Score every row"
    ):
        judged(data, negatives=path, scores=file(scores.slice(0, len(scores) - 1)))
    with pytest.raises(Failure, match=r"has event \d+ more than once"):
        judged(data, negatives=path, scores=file(pa.concat_tables([scores, scores.slice(3, 1)])))
    with pytest.raises(Failure, match="has no column score"):
        judged(data, negatives=path, scores=file(scores.drop_columns(["score"])))
    short = [None if row is None else row[:-1] for row in scores["candidate_scores"].to_pylist()]
    with pytest.raises(Failure, match=r"has 49 candidate_scores, the negatives' file has 50 candidates"):
        judged(data, negatives=path, scores=file(scores.set_column(4, "candidate_scores", pa.array(short))))
    with pytest.raises(Failure, match="--scores needs --negatives"):
        judged(data, scores=file(scores))


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (
            "event",
            lambda table: pc.add(table["event"], 0.5),
            "column event is double, expected whole numbers",
        ),
        (
            "event",
            lambda table: pa.array([[1]] * len(table)),
            "column event is list<.*, expected whole numbers",
        ),
        ("event", lambda table: pa.nulls(len(table), pa.int64()), r"event has \d+ rows without a number"),
        (
            "score",
            lambda table: pa.array([float("nan")] * len(table)),
            r"score is not a number for \d+ test events",
        ),
        ("candidate_scores", lambda table: table["score"], "candidate_scores is double, expected lists"),
        (
            "candidate_scores",
            lambda table: pa.array([[None] * 50] * len(table), pa.list_(pa.float64())),
            r"candidate_scores is not a number for \d+ test events",
        ),
    ],
)
def test_what_is_no_score_is_told_with_its_event_and_never_judged(
    name: str, values: object, said: str, made: tuple[str, dict], tmp_path: Path
) -> None:
    scores = foreign(made[0])
    wrong = scores.set_column(scores.schema.get_field_index(name), name, values(scores))
    pq.write_table(wrong, tmp_path / "s.parquet")
    ranked = scores.filter(scores["candidate_scores"].is_valid())["event"].to_numpy()
    with pytest.raises(Failure, match=f"--scores .*{said}"):
        found = ForeignScores(tmp_path / "s.parquet")
        found.column("score", ranked)
        found.candidates(ranked, 50)


def with_null(lists: list) -> list:
    first = next(row for row, found in enumerate(lists) if found)
    return [*lists[:first], [None, *lists[first][1:]], *lists[first + 1 :]]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (
            "random",
            lambda table: table["dst"],
            r"column random of event \d+ names a destination that its source meets at that time \(150 in all\)\. "
            r"A negative must not happen\. If they are your own, draw others or set these to null\. Otherwise give a path that "
            r"does not exist yet",
        ),
        (
            "candidates",
            lambda table: pa.array(
                [
                    row and [*row[:-1], dst]
                    for row, dst in zip(
                        table["candidates"].to_pylist(), table["dst"].to_pylist(), strict=True
                    )
                ]
            ),
            r"column candidates of event \d+ names a destination that its source meets at that time.* or set the lists of such "
            r"events to null",
        ),
        (
            "historical_src",
            lambda table: pa.nulls(len(table), pa.int64()),
            r"event \d+ has half a historical pair\. Give both ends or neither",
        ),
        (
            "candidates",
            lambda table: pa.array(with_null(table["candidates"].to_pylist())),
            r"event \d+ has a candidate that is null",
        ),
    ],
)
def test_what_is_no_negative_is_told_with_its_event(
    name: str, values: object, said: str, data: str, made: tuple[str, dict], tmp_path: Path
) -> None:
    wrong = changed(made[0], tmp_path / "n.parquet", **{name: values(pq.read_table(made[0]))})
    with pytest.raises(Failure, match=f"--negatives .*{said}"):
        judged(data, negatives=wrong)


def test_the_program_of_the_page_replaces_a_column_by_negatives_that_are_taken(
    data: str, made: tuple[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (
        (Path(__file__).parents[4] / "docs" / "training.md").read_text().split("### Negatives in a file")[1]
    )
    program = section.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    table = pq.read_table(made[0])
    pq.write_table(table, "negatives.parquet")
    exec(program, {})
    own = pq.read_table("own.parquet")
    assert own.column_names == table.column_names
    assert own["random"].null_count, "some of the drawn ones happen"
    assert own["random"].to_pylist() != table["random"].to_pylist()
    assert judged(data, negatives="own.parquet")["ap"] != made[1]["ap"]


def test_a_file_with_strange_metadata_a_folder_or_a_column_twice_is_no_file_of_negatives(
    data: str, made: tuple[str, dict], tmp_path: Path
) -> None:
    table = pq.read_table(made[0])
    strange = {
        "{": "has format unknown, this release reads 1",
        "[1]": "has format unknown",
        '{"format": 9}': "has format 9",
    }
    for said, expected in strange.items():
        pq.write_table(
            table.replace_schema_metadata({"freshet.negatives": said}), tmp_path / "strange.parquet"
        )
        with pytest.raises(Failure, match=expected):
            judged(data, negatives=str(tmp_path / "strange.parquet"))
    twice = pa.Table.from_arrays([*table.columns, table["t"]], names=[*table.column_names, "t"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(Failure, match="has column t more than once"):
        judged(data, negatives=str(tmp_path / "twice.parquet"))
    with pytest.raises(Failure, match=r"cannot be read: .* is a directory"):
        judged(data, negatives=str(tmp_path))
