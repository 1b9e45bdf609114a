"""Event files: what may stand in their columns, and how a wrong one is told."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.service.failure import Failure


def parquet(folder: Path, **columns: object) -> Path:
    table = {"src": [1, 2, 3], "dst": [4, 5, 6], "t": [10, 20, 30]} | columns
    path = folder / "events.parquet"
    pq.write_table(pa.table({name: value for name, value in table.items() if value is not None}), path)
    return path


def csv(folder: Path, text: str) -> Path:
    path = folder / "events.csv"
    path.write_text(text)
    return path


def test_three_columns_make_inserts_in_file_order(tmp_path):
    file = read_events(parquet(tmp_path, t=[30, 10, 20]))
    assert file.events.schema.equals(event_schema("int"))
    assert file.events["t"].to_pylist() == [30_000_000, 10_000_000, 20_000_000]
    assert file.events["op"].to_pylist() == [1, 1, 1]
    assert file.events["weight"].to_pylist() == [1.0] * 3
    assert (file.ids, file.node_features, file.edge_features, file.sorted_by_time) == ("int", 0, 0, False)


def test_a_row_without_dst_sets_the_features_of_its_node(tmp_path):
    features = pa.array([[1.0, 2.0], None, [5.0]], pa.list_(pa.float64()))
    file = read_events(parquet(tmp_path, dst=[None, 5, 6], op=[1, -1, 1], features=features))
    assert file.events["op"].to_pylist() == [0, -1, 1]
    assert file.events["features"].to_pylist() == [[1.0, 2.0], None, [5.0]]
    assert (file.node_features, file.edge_features) == (2, 1)


def test_pandas_turns_gaps_into_floats_and_they_are_ids_all_the_same(tmp_path):
    file = read_events(parquet(tmp_path, dst=[4.0, float("nan"), 6.0], label=[0.0, 1.0, float("nan")]))
    assert file.events["dst"].to_pylist() == [4, None, 6]
    assert file.events["label"].to_pylist() == [0, 1, None]


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        ([0.5, 1.25, 1082040961.123456], [500_000, 1_250_000, 1_082_040_961_123_456]),
        (pa.array([1, 2, 3], pa.timestamp("ms")), [1000, 2000, 3000]),
        (pa.array([1, 2, 3], pa.int8()), [1_000_000, 2_000_000, 3_000_000]),
    ],
)
def test_times_are_seconds_or_timestamps(tmp_path, t, expected):
    assert read_events(parquet(tmp_path, t=t)).events["t"].to_pylist() == expected


def test_string_ids_are_found_or_asked_for(tmp_path):
    path = parquet(tmp_path, src=["a", "b", "c"], dst=["a", None, "c"], label=[None, 3, None])
    assert read_events(path).ids == "string"
    assert read_events(path, ids="string").events["src"].to_pylist() == ["a", "b", "c"]
    with pytest.raises(Failure, match=r"events\.parquet, row 1: src is the string 'a', but ids are int64"):
        read_events(path, ids="int")
    assert read_events(parquet(tmp_path), ids="string").events["src"].to_pylist() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"dst": None}, "column dst is missing; found src, t"),
        ({"src": None}, "column src is missing"),
        ({"t": ["a", "b", "c"]}, "row 1: column t has 'a', which is not a time as RFC 3339 writes it"),
        ({"t": [True, False, True]}, "column t is bool, expected timestamps or numbers"),
        ({"weight": ["a", "b", "c"]}, "row 1: weight is the string 'a', expected a number"),
        ({"features": [1.0, 2.0, 3.0]}, "column features is double, expected list<float32>"),
        ({"t": [10, -1, 30]}, "row 2: t is 1969-12-31T23:59:59Z, outside 1970-01-01T00:00:00Z"),
        ({"t": [10, None, 30]}, "row 2: t is missing"),
        ({"t": [10.0, float("inf"), 30.0]}, "row 2: t is inf"),
        ({"src": [1, None, 3]}, "row 2: src is missing"),
        ({"src": pa.array([1, 2**64 - 1, 3], pa.uint64())}, "row 2: src is 18446744073709551615"),
        ({"src": [1.0, 1.5, 2.0]}, "row 2: src is 1.5"),
        ({"op": [1, 7, 1]}, "row 2: op is 7"),
        ({"op": [1, -1, 1], "dst": [4, None, 6]}, "row 2: dst is missing"),
        ({"dst": [4, None, 6]}, "row 2: a node event without features"),
        ({"weight": [1.0, float("nan"), 1.0]}, "row 2: weight is nan"),
        ({"features": [[1.0], [float("nan")], [1.0]]}, "row 2: a value of features is not a finite"),
        ({"features": [[1.0], [1.0, 2.0], [1.0]]}, "row 2: features has 2 values, but the first edge row with features has 1"),
        ({"label": [1, 2**40, 1]}, "row 2: label is 1099511627776"),
        ({"src": ["a", "", "c"], "dst": ["a", "b", "c"]}, "row 2: src is an empty string"),
        ({"src": ["a", "x" * 257, "c"], "dst": ["a", "b", "c"]}, "row 2: src has more than 256 bytes"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_by_column_and_row(tmp_path, columns, words):
    with pytest.raises(Failure) as failure:
        read_events(parquet(tmp_path, **columns))
    assert words in str(failure.value)
    assert "events.parquet" in str(failure.value)


def test_rows_are_counted_over_the_whole_file(tmp_path):
    rows = 600_000  # more than one batch
    t = [1] * rows
    t[-1] = -1
    with pytest.raises(Failure, match=f"row {rows}: t is"):
        read_events(parquet(tmp_path, src=[1] * rows, dst=[2] * rows, t=t))


def test_bounds_narrow_the_times(tmp_path):
    path = parquet(tmp_path)
    assert read_events(path, bounds=(10, 30)).events.num_rows == 3
    with pytest.raises(Failure, match="row 3: t is 1970-01-01T00:00:30Z, outside"):
        read_events(path, bounds=(10, 20))


def test_csv_reads_like_parquet(tmp_path):
    text = (
        'src,note,dst,t,op,weight,features\n1,"x, y",2,10.5,1,0.5,\n3,,,11,,,"[0.5, -1e-3]"\n1,,2,12,-1,,\n'
    )
    file = read_events(csv(tmp_path, text))
    assert file.events.select(["op", "src", "dst", "t", "weight"]).to_pylist() == [
        {"op": 1, "src": 1, "dst": 2, "t": 10_500_000, "weight": 0.5},
        {"op": 0, "src": 3, "dst": None, "t": 11_000_000, "weight": 1.0},
        {"op": -1, "src": 1, "dst": 2, "t": 12_000_000, "weight": 1.0},
    ]
    assert file.events["features"].to_pylist()[1] == pytest.approx([0.5, -1e-3])
    assert file.node_features == 2


def test_csv_ids_that_are_no_numbers_are_strings(tmp_path):
    file = read_events(csv(tmp_path, "src,dst,t\n007,é,1\nb,007,2\n"))
    assert file.ids == "string"
    assert file.events["src"].to_pylist() == ["007", "b"]
    assert read_events(csv(tmp_path, "src,dst,t\n007,8,1\n"), ids="string").events["src"].to_pylist() == [
        "007"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("src,dst,t\n1,2,3\n1,x,4\n", "row 2: column dst has 'x', expected a number"),
        ("src,dst,t\n1,2,3\n1,2,soon\n", "row 2: column t has 'soon', expected a number"),
        (
            "src,dst,t,features\n1,2,3,\n1,2,4,[1;b]\n",
            "row 2: column features has '[1;b]', expected [0.5, 1.0]",
        ),
        (
            "src,dst,t\na,2,3\nb,2,3\n",
            "row 1: column src has 'a', expected a number, as in all rows",
        ),
        ("src,dst\n1,2\n", "column t is missing"),
        ("a,b,c\n1,2,3\n", "column src is missing; found a, b, c"),
        ("src,src,dst,t\n1,1,2,3\n", "column src stands 2 times"),
        ("src,dst,t\n1,2\n", "row 1: it has 2 columns, but the header has 3: '1,2', as all rows looked at"),
        ("src,dst,t\n1,2,3\n1,2\n", "row 2: it has 2 columns, but the header has 3: '1,2'"),
        ("src,dst,t\n1,2,3\n\n1,2,3,4\n", "row 2: it has 4 columns, but the header has 3: '1,2,3,4'"),
        ("", "cannot be read"),
    ],
)
def test_a_wrong_csv_cell_is_told_by_column_and_row(tmp_path, text, words):
    with pytest.raises(Failure) as failure:
        read_events(csv(tmp_path, text), ids="int")
    assert words in str(failure.value)


def test_an_empty_csv_with_a_header_has_no_events(tmp_path):
    assert read_events(csv(tmp_path, "src,dst,t\n")).events.num_rows == 0


def test_what_is_no_readable_file_is_a_sentence(tmp_path):
    with pytest.raises(Failure, match="cannot be read: No such file"):
        read_events(tmp_path / "absent.parquet")
    with pytest.raises(Failure, match="is a folder without files of events"):
        read_events(tmp_path)
    broken = parquet(tmp_path)
    broken.write_bytes(broken.read_bytes()[:-30])
    with pytest.raises(Failure, match="cannot be read"):
        read_events(broken)
