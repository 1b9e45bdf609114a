"""Files as other projects have them, through the commands that read files; a refused one names the flag that would read it."""

import bz2
import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from streaming import configuration
from typer.testing import CliRunner

from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.schemas.store import HistoryRecord
from freshet_graph.stream.cli import app
from freshet_graph.stream.decode.files import open_rows, read_events
from freshet_graph.stream.decode.history_file import survey
from freshet_graph.stream.decode.validate import Rules
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.cli import app as trainer_app

ROWS = 120
T0 = 1_700_000_000
USERS, ITEMS = 7, 4
JODIE = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"


def rows() -> list[tuple[int, int, int, int, list[float]]]:
    """User, item, seconds, label, two features; users and items are both numbered from 0."""
    rng = np.random.default_rng(3)
    return [
        (int(rng.integers(USERS)), int(rng.integers(ITEMS)), T0 + 60 * i, i % 2, [i / 4, -float(i)])
        for i in range(ROWS)
    ]


def parquet(path: Path, *, apart: bool = True, label: bool = True, features: bool = True) -> Path:
    """The same rows as Freshet's own file."""
    users, items, t, labels, vectors = zip(*rows(), strict=True)
    table = {"src": users, "dst": [-1 - item if apart else item for item in items], "t": t}
    table |= {"label": labels} if label else {}
    table |= {"features": pa.array(vectors, pa.list_(pa.float32()))} if features else {}
    pq.write_table(pa.table(table), path)
    return path


def lines(*columns: Callable[[Any], object], separator: str = ",", header: str | None = None) -> str:
    body = [separator.join(str(column(row)) for column in columns) for row in rows()]
    return "\n".join([header, *body] if header is not None else body) + "\n"


def user(row: Any) -> object:
    return row[0]


def item(row: Any) -> object:
    return row[1]


def t(row: Any) -> object:
    return row[2]


def label(row: Any) -> object:
    return row[3]


def first(row: Any) -> object:
    return row[4][0]


def second(row: Any) -> object:
    return row[4][1]


def snap() -> str:
    body = lines(user, item, t, separator=" \t ").splitlines()
    body.insert(ROWS // 2, "  # half")
    return "\n".join(["# Directed graph: each pair is saved once", "# FromNodeId\tToNodeId\tTime", *body])


def jodie() -> str:
    return lines(user, item, t, label, first, second, header=JODIE)


def dyglib(folder: Path) -> Path:
    body = [f"{i},{a},{-1 - b},{s}.0,{float(c)},{i + 1}" for i, (a, b, s, c, _) in enumerate(rows())]
    (folder / "ml_x.csv").write_text("\n".join([",u,i,ts,label,idx", *body]))
    np.save(folder / "ml_x.npy", np.array([[0.0, 0.0], *(row[4] for row in rows())]))
    return folder / "ml_x.csv"


def json_lines(folder: Path) -> Path:
    events = [
        {"user": {"id": a}, "item": b, "ms": s * 1000, "label": c, "f1": f[0], "f2": f[1]}
        for a, b, s, c, f in rows()
    ]
    (folder / "e.jsonl.gz").write_bytes(gzip.compress("\n\n".join(map(json.dumps, events)).encode()))
    return folder / "e.jsonl.gz"


def columns_of(folder: Path) -> pa.Table:
    users, items, seconds, labels, vectors = zip(*rows(), strict=True)
    decimals = pa.array([Decimal(s) + Decimal("0.0000004") for s in seconds], pa.decimal128(20, 7))
    f1, f2 = zip(*vectors, strict=True)
    return pa.table({"src": users, "dst": items, "t": decimals, "label": labels, "f1": f1, "f2": f2})


def spark(folder: Path) -> Path:
    table = columns_of(folder)
    (folder / "spark" / "day=1").mkdir(parents=True)
    pq.write_table(table.slice(0, 50), folder / "spark" / "day=1" / "part-00000-a.snappy.parquet")
    pq.write_table(table.slice(50), folder / "spark" / "part-00000-b.snappy.parquet")
    (folder / "spark" / "_SUCCESS").write_text("")
    (folder / "spark" / ".part-00000-b.snappy.parquet.crc").write_bytes(b"crc")
    return folder / "spark"


def text(name: str, content: Callable[[], str]) -> Callable[[Path], Path]:
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}.get(
        Path(name).suffix, bytes
    )

    def write(folder: Path) -> Path:
        (folder / name).write_bytes(pack(content().encode()))
        return folder / name

    return write


def columnar(name: str, write: Callable[[pa.Table, str], object]) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        write(columns_of(folder), str(folder / name))
        return folder / name

    return written


FEATURES = "--bipartite --feature-columns f*"
NUMBERS = "--no-header --columns src=0,dst=1,t=2,label=3 --bipartite --feature-columns 4,5"
SHAPES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "jodie": (text("wikipedia.csv", jodie), "--as jodie"),
    "jodie by flags": (
        text("wikipedia.csv", jodie),
        "--columns src=user_id,dst=item_id,t=timestamp,label=state_label --bipartite",
    ),
    "jodie.gz": (text("wikipedia.csv.gz", jodie), "--as jodie"),
    "jodie.zst": (text("wikipedia.csv.zst", jodie), "--as jodie"),
    "jodie.bz2": (text("wikipedia.csv.bz2", jodie), "--as jodie"),
    "tgbl-wiki": (text("tgbl-wiki.csv", jodie), "--as tgb"),
    "tgb, time first, a list": (
        text(
            "tgbl.csv",
            lambda: lines(
                t, user, item, label, lambda row: f'"{row[4][0]},{row[4][1]}"',
                header="timestamp,user_id,item_id,state_label,comma_separated_list_of_features",
            ),
        ),
        "--as tgb",
    ),
    "dyglib": (dyglib, "--as dyglib"),
    "semicolons": (
        text("e.txt", lambda: lines(user, item, t, label, first, second, separator=";", header="a;b;when;label;f1;f2")),
        f"--delimiter ; --columns src=a,dst=b,t=when {FEATURES}",
    ),
    "tabs": (
        text("e.txt", lambda: lines(user, item, t, label, first, second, separator="\t")),
        f"--delimiter \\t {NUMBERS}",
    ),
    "no header": (text("e.csv", lambda: lines(user, item, t, label, first, second)), NUMBERS),
    "header of spaces": (
        text("e.csv", lambda: lines(user, item, t, label, first, second, header="src, dst, t, label, f1, f2")),
        FEATURES,
    ),
    "short header": (
        text("e.csv", lambda: lines(user, item, t, label, first, second, header="src,dst,t,label")),
        "--bipartite",
    ),
    "milliseconds": (
        text(
            "e.csv",
            lambda: lines(user, item, lambda row: f"{row[2]}000.25", label, first, second, header="src,dst,t,label,f1,f2"),
        ),
        f"--time-unit ms {FEATURES}",
    ),
    "lines of JSON": (json_lines, f"--columns src=user.id,dst=item,t=ms --time-unit ms {FEATURES}"),
    "parquet of decimals": (columnar("e.parquet", pq.write_table), FEATURES),
    "orc": (columnar("e.orc", pyarrow.orc.write_table), FEATURES),
    "feather": (columnar("e.feather", pyarrow.feather.write_feather), FEATURES),
    "spark": (spark, FEATURES),
}  # fmt: skip


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """The events that ``replay`` would send."""
    tables: list[pa.Table] = []

    class Done:
        sent, seconds, events_per_s = ROWS, 1.0, float(ROWS)

    def send(events: pa.Table, **_: object) -> type[Done]:
        tables.append(events)
        return Done

    monkeypatch.setattr("freshet_graph.stream.kafka.producer.replay", send)
    monkeypatch.setattr("freshet_graph.stream.kafka.producer.greet", lambda *_: None)
    return tables


def replay(*files: object, flags: str = "") -> Any:
    arguments = [
        "replay",
        *map(str, files),
        "--bootstrap",
        "127.0.0.1:1",
        "--topic",
        "edges",
        *flags.split(),
        "--json",
    ]
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_foreign_file_has_the_events_of_freshets_own(
    shape: str, tmp_path: Path, sent: list[pa.Table]
) -> None:
    write, flags = SHAPES[shape]
    for file, chosen in ((parquet(tmp_path / "own.parquet"), ""), (write(tmp_path), flags)):
        done = replay(file, flags=chosen)
        assert done.exit_code == 0, done.output
        assert "not read" not in done.stderr
    own, foreign = sent
    if shape == "milliseconds":  # a quarter of one more
        assert set(np.subtract(foreign["t"], own["t"])) == {250}
        foreign = foreign.set_column(own.schema.get_field_index("t"), own.schema.field("t"), own["t"])
    assert foreign.combine_chunks().equals(own.combine_chunks())


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_snap_is_text_of_blanks_and_comments(suffix: str, tmp_path: Path, sent: list[pa.Table]) -> None:
    file = text(f"CollegeMsg.txt{suffix}", snap)(tmp_path)
    for flags in ("--as snap", "--comment # --no-header --columns src=0,dst=1,t=2 --delimiter"):
        arguments = ["replay", str(file), "--bootstrap", "127.0.0.1:1", "--topic", "edges", *flags.split()]
        done = CliRunner().invoke(app, [*arguments, *([" "] if flags.endswith("delimiter") else [])])
        assert done.exit_code == 0, done.output
    own = parquet(tmp_path / "own.parquet", apart=False, label=False, features=False)
    assert replay(own).exit_code == 0
    assert sent[0].equals(sent[2])
    assert sent[1].equals(sent[2])


def test_edge_lists_of_tgb_have_the_time_first_and_addresses_are_strings(
    tmp_path: Path, sent: list[pa.Table]
) -> None:
    (tmp_path / "tgbl-coin.csv").write_text(
        "day,src,dst,weight\n1648771200,0xa,0xb,2.5\n1648857600,0xb,0xa,1\n"
    )
    (tmp_path / "tgbl-comment.csv").write_text(
        "ts,src,dst,subreddit,num_words,score\n7,a,b,x,10,2\n8,b,c,y,5,-1\n"
    )
    assert replay(tmp_path / "tgbl-coin.csv", flags="--as tgb").exit_code == 0
    assert sent[0].select(["src", "dst", "t", "weight"]).to_pylist() == [
        {"src": "0xa", "dst": "0xb", "t": 1648771200_000_000, "weight": 2.5},
        {"src": "0xb", "dst": "0xa", "t": 1648857600_000_000, "weight": 1.0},
    ]
    done = replay(tmp_path / "tgbl-comment.csv", flags="--as tgb --feature-columns num_words,score")
    assert done.exit_code == 0, done.output
    assert sent[1]["features"].to_pylist() == [[10, 2], [5, -1]]
    assert "column subreddit is not read" in done.stderr


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_amounts_are_logarithms_as_in_a_topic(suffix: str, tmp_path: Path, sent: list[pa.Table]) -> None:
    file = tmp_path / f"e.{suffix}"
    rows = [
        {"src": 1, "dst": 2, "t": 10, "f0": 2.0, "amount": -999.0},
        {"src": 1, "dst": 3, "t": 11, "f0": 3.0, "amount": 0.0},
    ]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif suffix == "jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        cells = (",".join(map(str, row.values())) for row in rows)
        file.write_text("\n".join(["src,dst,t,f0,amount", *cells]))
    logs = (-np.log(np.float32(1000)), 0.0)
    for flags, expected in (
        ("log:amount", [[logs[0]], [logs[1]]]),
        ("f*,log:4", [[2.0, logs[0]], [3.0, logs[1]]]),
        ("*,log:amount", [[2.0, logs[0]], [3.0, logs[1]]]),
        ("f0,amount", [[2.0, -999.0], [3.0, 0.0]]),
    ):
        done = replay(file, flags=f"--feature-columns {flags}")
        assert done.exit_code == 0, done.output
        np.testing.assert_allclose(sent.pop()["features"].to_pylist(), expected, rtol=1e-6)


def test_several_files_and_globs_are_read_in_order(tmp_path: Path, sent: list[pa.Table]) -> None:
    for number in (10, 2, 1):
        (tmp_path / f"day-{number:02}.csv").write_text(f"src,dst,t\n{number},{number + 50},{number}\n")
    assert replay(tmp_path / "day-10.csv", tmp_path / "day-0*.csv").exit_code == 0
    assert sent[0]["src"].to_pylist() == [10, 1, 2]
    done = replay(tmp_path / "night-*.csv")
    assert done.exit_code == 1
    assert "no file matches" in done.stderr


COMMANDS = {
    "partition": (app, "partition FILE --algorithm distdy --parts 2 --snapshots 3"),
    "savings": (app, "savings FILE --snapshots 3 --parts 2"),
    "evaluate": (trainer_app, "evaluate --data FILE --config trainer.yaml"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_read_foreign_files_by_the_same_flags(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshet_graph.trainer.commands.evaluate.configure_logs", lambda **_: None)
    monkeypatch.chdir(tmp_path)
    keys = {"lane": "hash", "interval_s": 3600, "optimisation": {"epochs": 1}, "checkpoint": "checkpoints"}
    Path("trainer.yaml").write_text(yaml.safe_dump(keys))
    application, line = COMMANDS[command]

    def call(file: Path, flags: str) -> dict[str, Any]:
        done = CliRunner().invoke(
            application, [*line.replace("FILE", str(file)).split(), *flags.split(), "--json"]
        )
        assert done.exit_code == 0, done.output
        result = json.loads(done.stdout.splitlines()[-1])
        timed = ("second", "_s", "peak_mib", "runs", "mapped")
        return {key: value for key, value in result.items() if not any(word in key for word in timed)}

    expected = call(parquet(tmp_path / "own.parquet"), "")
    if command == "partition":
        assert expected["nodes"] == USERS + ITEMS
    for shape in ("jodie.gz", "spark"):
        write, flags = SHAPES[shape]
        assert call(write(tmp_path), flags) == expected


FAULTS = [
    # content, flags, exit code, words
    (jodie(), "", 1, "JODIE's files have such a header. Give --as jodie"),
    (JODIE + "\n0,0,0.0,0,1,2\n0,0,0.0,x,1,2\n", "--as jodie", 1, "row 2: column label (state_label) has 'x', expected a number"),
    (JODIE + "\n0,0,0.0,0,1,2\n0,0,1.0,0,1,2\n0,0,2.0,0,1\n", "--as jodie", 1, "row 3: it has 5 columns, but most rows have 6"),
    (JODIE + "\n0,0,0.0,0,1,2\n0,0,1.0,0,1,?\n", "--as jodie", 1, "row 2: column 5 has '?', expected a number"),
    (JODIE + "\n-3,0,0.0,0,1,2\n", "--as jodie", 1, "row 1: src (user_id) is -3, but --bipartite takes ids from 0 on"),
    ("# FromNodeId ToNodeId\n1 2 3\n", "", 1, "begins with a comment. Give --as snap, or --comment '#'"),
    ("1 2 3\n4 5 6\n", "", 1, "a row of numbers between blanks. Give --as snap"),
    ("# c\n1 2 3\n4 5\n", "--as snap", 1, "row 2: it has 2 columns, but most rows have 3: '4 5'"),
    ("1,2,3\n4,5,6\n", "", 1, "Give --no-header --columns src=0,dst=1,t=2"),
    ("a;b;when\n1;2;3\n", "", 1, "If cells end with ';', give --delimiter ';'"),
    ("ts,src,dst,w\n1,2,3,4\n", "", 1, "TGB's edge lists have such a header. Give --as tgb"),
    (",u,i,ts,label,idx\n0,1,2,3.0,0.0,1\n", "", 1, "DyGLib's files have such a header. Give --as dyglib"),
    ("src,dst,t\n1,2,3\n% end\n", "", 1, "the header has 3: '% end'. If it is a comment, give --comment '%'"),
    ("src,dst,t\n1,2,1700000000000\n", "", 1, "row 1: t is 1700000000000 s, outside"),
    ("src,dst,t\n1,2,1700000000000000\n", "--time-unit ms", 1, "It looks like microseconds. Give --time-unit us"),
    ("src,dst,t\n1,2,17\n", "--time-unit rfc3339", 1, "row 1: column t has '17', which is not a time as RFC 3339"),
    ("from_user,to_user,when\n1,2,3\n", "", 1, "Give --columns src=from_user,dst=to_user,t=when"),
    ("users,dst,t\n1,2,3\n", "--columns src=user", 1, "column user is missing; found users, dst, t. Did you mean users?"),
    ("src,dst,t,f1\n1,2,3,4\n", "--feature-columns g*,f1", 1, "no column matches g* of --feature-columns; found src, dst, t, f1"),
    ("src,dst,t,f1\n1,2,3,4\n", "--feature-columns t", 1, "column t is t of an event, and so cannot be one of --feature-columns"),
    ("src,dst,t,features,f1\n1,2,3,4,5\n", "--feature-columns f1", 1, "column features has features, and so have f1"),
    ("src,dst,t\n1,2,3\n", "--columns src=0,dst=src", 1, "--columns names a column by its name and by its number"),
    ('[{"src": 1}]', "", 1, "is one JSON array. Write an object per line"),
    ('{"src": 1, "dst": 2, "t": 3}\n{"src": 1, "dst": 2,\n', "", 1, "row 2: not JSON: cut off at byte"),
    ('{"a": 1, "dst": 2, "t": 3}\n', "", 1, "column src is missing; found a, dst, t"),
    ("% asym unweighted\n1 2 1 7\n", "", 1, "begins with a comment. Give --comment % --delimiter ' ' --no-header"),
    ("1,2,3\n", "--no-header", 1, "Give the numbers of the columns, such as --columns src=0,dst=1,t=2"),
    (",".join(f"c{i}" for i in range(100)), "", 1, "c10, c11 and 88 more."),
    ("src,dst,t\n1,2,3\n\0", "", 1, "cannot be read: neither Parquet, ORC or Feather nor text in UTF-8"),
    ("", "", 1, "cannot be read: the file is empty"),
    ("src,dst,t\n", "--time-unit nanos", 2, "must be 's', 'ms', 'us', 'ns' or 'rfc3339', found 'nanos'. Did you mean ns?"),
    ("src,dst,t\n", "--time-unit microseconds", 2, "Did you mean us?"),
    ("src,dst,t\n", "--as jodi", 2, "--as must be 'jodie', 'tgb', 'dyglib' or 'snap', found 'jodi'. Did you mean jodie?"),
    ("src,dst,t\n", "--delimiter ;;", 2, "--delimiter must be one character"),
    ("src,dst,t\n", "--columns source=user", 2, "--columns names source, which events don't have. They have op, src, dst, t"),
    ("src,dst,t\n", "--columns src=user,src=item", 2, "--columns names src twice"),
    ("src,dst,t\n", "--columns src", 2, "--columns takes pairs such as src=user,dst=item,t=ts, found 'src'"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "flags", "code", "words"), FAULTS)
def test_a_refused_file_names_its_place_and_the_flag_that_reads_it(
    content: str, flags: str, code: int, words: str, tmp_path: Path, sent: list[pa.Table]
) -> None:
    (tmp_path / "e.txt").write_text(content)
    done = replay(tmp_path / "e.txt", flags=flags)
    sentence = " ".join(done.stderr.replace("│", " ").split())
    assert done.exit_code == code, done.output
    assert words in sentence
    assert code == 2 or "e.txt" in sentence
    assert not sent


@pytest.mark.usefixtures("sent")
def test_features_of_dyglib_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = dyglib(tmp_path)
    np.save(tmp_path / "ml_x.npy", np.zeros((ROWS, 2)))
    done = replay(file, flags="--as dyglib")
    assert f"row {ROWS}: idx is {ROWS}, but ml_x.npy has {ROWS} rows" in done.stderr
    np.save(tmp_path / "ml_x.npy", np.zeros(ROWS))
    assert "expected events × features" in replay(file, flags="--as dyglib").stderr


@pytest.mark.parametrize(
    ("src", "dst", "warned"),
    [
        ([0, 1, 2, 3, 0], [0, 1, 0, 1, 1], True),  # users and items from 0 on
        ([1, 2, 3, 1], [1, 1, 2, 2], True),
        ([10, 400, 90_000], [11, 300, 80_000], True),  # no id is both
        ([0, 1, 2, 3], [4, 5, 4, 5], False),  # ranges apart
        ([0, 1, 2, 3], [1, 2, 3, 0], False),
        ([0, 1, 2, 5], [1, 2, 0, 0], False),  # an id that never sends
        (["a", "b"], ["a", "b"], False),
    ],
)
def test_sides_that_look_like_two_kinds_are_named(
    src: list[Any], dst: list[Any], warned: bool, tmp_path: Path, sent: list[pa.Table]
) -> None:
    pq.write_table(pa.table({"src": src, "dst": dst, "t": range(len(src))}), tmp_path / "e.parquet")
    done = replay(tmp_path / "e.parquet")
    assert done.exit_code == 0
    assert ("Give --bipartite if they are two" in done.stderr) == warned
    again = replay(tmp_path / "e.parquet", flags="--bipartite")
    assert "Give --bipartite" not in again.stderr
    assert not set(sent[1]["src"].to_pylist()) & set(sent[1]["dst"].to_pylist())
    assert sent[1]["src"].equals(sent[0]["src"])


def test_what_is_refused_by_a_resumed_backfill_names_its_flags() -> None:
    options = FileOptions(preset="snap", time_unit="ms")
    record = HistoryRecord(
        files=[], until_us=0, rows=0, after=0, disorder_us=0, ends=[], reading=options.given
    )
    assert FileOptions.model_validate(record.reading) == options
    assert options.flags == ["--time-unit", "ms", "--as", "snap"]


cells = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**9), st.integers(0, 999))


@given(
    st.lists(cells, min_size=1, max_size=30),
    st.sampled_from([",", ";", "\t", "|", " "]),
    st.booleans(),
    st.sampled_from([None, "#", "//"]),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.booleans(),
    st.data(),
)
def test_any_text_of_cells_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    table: list[tuple[int, int, int, int]],
    delimiter: str,
    header: bool,
    comment: str | None,
    unit: str,
    bipartite: bool,
    data: st.DataObject,
) -> None:
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]

    def separator() -> str:
        return data.draw(st.sampled_from([" ", "  ", "\t", " \t "])) if delimiter == " " else delimiter

    def line(*content: object) -> str:
        text = (data.draw(st.sampled_from(["", " ", "\t"])) if delimiter == " " else "") + str(content[0])
        for cell in content[1:]:
            text += separator() + str(cell)
        return text

    written = [line("a", "b", "when", "f")] if header else []
    written += [line(a, b, f"{t}{'0' * digits}", f) for a, b, t, f in table]
    if comment is not None:
        for place in data.draw(st.lists(st.integers(0, len(written)), max_size=4)):
            written.insert(place, f"{comment} a{delimiter}comment")
    ending = data.draw(st.sampled_from(["\n", "\r\n"]))
    path = tmp_path_factory.mktemp("text") / "e.txt"
    path.write_bytes((ending.join(written) + data.draw(st.sampled_from(["", ending]))).encode())
    names = ("a", "b", "when", "f") if header else tuple("0123")
    options = FileOptions(
        columns=f"src={names[0]},dst={names[1]},t={names[2]}",
        feature_columns=names[3],
        delimiter=delimiter,
        comment=comment,
        no_header=not header,
        time_unit=unit,
        bipartite=bipartite,
    )
    events = read_events(path, options=options).events.to_pylist()
    assert [(e["src"], e["dst"], e["t"], e["features"]) for e in events] == [
        (a, -1 - b if bipartite else b, t * 1_000_000, [f]) for a, b, t, f in table
    ]


def test_what_begins_in_one_block_of_a_text_ends_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {name: SHAPES[name] for name in ("jodie", "semicolons", "lines of JSON")}
    written["snap"] = (text("s.txt", snap), "--as snap")
    options = {
        "jodie": FileOptions(preset="jodie"),
        "semicolons": FileOptions(
            delimiter=";", columns="src=a,dst=b,t=when", feature_columns="f*", comment="%"
        ),
        "lines of JSON": FileOptions(
            columns="src=user.id,dst=item,t=ms", time_unit="ms", feature_columns="f*"
        ),
        "snap": FileOptions(preset="snap"),
    }
    files = {name: write(tmp_path) for name, (write, _) in written.items()}
    whole = {name: read_events(file, options=options[name]).events for name, file in files.items()}
    monkeypatch.setattr("freshet_graph.stream.decode.delimited._BLOCK_BYTES", 300)
    monkeypatch.setattr("freshet_graph.stream.decode.json_file._BLOCK_BYTES", 300)
    for name, file in files.items():
        opened = open_rows(file, "int", options=options[name])
        assert sum(1 for _ in opened.rows) > 3
        assert (
            read_events(file, options=options[name])
            .events.combine_chunks()
            .equals(whole[name].combine_chunks())
        )
    broken = jodie().splitlines()
    broken[50] = broken[90] = "1,2,3"
    (tmp_path / "broken.csv").write_text("\n".join(broken))
    opened = open_rows(tmp_path / "broken.csv", "int", options=options["jodie"])
    refused = np.concatenate([rows.faults.code > 0 for rows in opened.rows])
    assert np.flatnonzero(refused).tolist() == [49, 89]
    with files["snap"].open("a") as more:
        more.write("\n1 2 x\n")
    with pytest.raises(Failure, match=rf"row {ROWS + 1}: column t \(2\) has 'x'"):
        read_events(files["snap"], options=options["snap"])


@pytest.mark.parametrize(
    "shape", ["jodie.gz", "dyglib", "lines of JSON", "orc", "feather", "parquet of decimals"]
)
def test_a_file_is_read_from_any_row_and_for_its_times_only(shape: str, tmp_path: Path) -> None:
    write, flags = SHAPES[shape]
    words = flags.split()
    given = {"preset": words[1]} if words[0] == "--as" else {"feature_columns": "f*", "bipartite": True}
    if shape == "lines of JSON":
        given |= {"columns": words[1], "time_unit": "ms"}
    file, options = write(tmp_path), FileOptions.model_validate(given)
    expected = read_events(file, options=options).events
    for start in (0, 1, 50, ROWS):
        opened = open_rows(file, "int", start=start, options=options)
        drafts = [opened.columns.draft(rows, "int") for rows in opened.rows]
        events = [draft.events() for draft in drafts]
        assert sum(event.num_rows for event in events) == ROWS - start
        assert not events or pa.Table.from_batches(events).combine_chunks().equals(
            expected.slice(start).combine_chunks()
        )
    times = survey(file, Rules("int"), options)
    assert (times.rows, times.first_us, times.last_us) == (
        ROWS,
        expected["t"][0].as_py(),
        expected["t"][-1].as_py(),
    )


def test_backfill_reads_a_foreign_file_and_resumes_with_its_flags_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshet_graph.stream.commands.backfill.configure_logs", lambda **_: None)
    monkeypatch.setattr("freshet_graph.stream.job.backfill.topic_bounds", lambda _: [])

    def begin(store: str, file: Path, flags: str) -> Any:
        snapshots = {"interval_s": 3600}
        content = configuration(
            tmp_path / store, "127.0.0.1:1", "edges", snapshots=snapshots, features={"edge": 2}
        )
        (tmp_path / "stream.yaml").write_text(yaml.safe_dump(content))
        arguments = [
            "backfill",
            str(file),
            "--config",
            str(tmp_path / "stream.yaml"),
            *flags.split(),
            "--json",
        ]
        return CliRunner().invoke(app, arguments)

    bad = JODIE + "\n0,3,0.0\n" + jodie().partition("\n")[2]
    file = text("wikipedia.csv.gz", lambda: bad)(tmp_path)
    assert begin("own", parquet(tmp_path / "own.parquet"), "").exit_code == 0
    done = begin("jodie", file, "--as jodie")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["rows"], result["events"], result["refused"]) == (ROWS + 1, ROWS, 1)
    own, foreign = LogReader(tmp_path / "own"), LogReader(tmp_path / "jodie")
    taus = [snapshot.tau for snapshot in own.snapshots]
    assert taus == [snapshot.tau for snapshot in foreign.snapshots]
    assert all(own.events(tau).equals(foreign.events(tau)) for tau in taus)
    (rejects,) = (tmp_path / "jodie" / "log").rglob("rejects/*.arrow")
    (raw,) = pa.ipc.open_file(rejects).read_all()["raw"].to_pylist()
    assert json.loads(raw)["dst"] == 3  # as in the file
    again = begin("jodie", file, "--as tgb")
    assert again.exit_code == 1
    assert "differ from when the log's history began. Give --as jodie, or choose a new store" in again.stderr
    assert begin("jodie", file, "--as jodie").exit_code == 0
