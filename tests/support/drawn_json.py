"""JSON messages, mostly likely ones and some broken."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from freshet_graph.schemas.events import IdKind
from freshet_graph.stream.decode.json_messages import read_json, read_message
from freshet_graph.stream.decode.mapping import FIELDS, Mapping
from freshet_graph.stream.decode.reading import RefusedError
from freshet_graph.stream.decode.validate import draft_schema

NUMBERS = st.one_of(
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,22})(\.[0-9]{1,22})?([eE][+-]?[0-9]{1,3})?\Z"),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        [
            "01",
            "+1",
            "1.",
            ".5",
            "-",
            "-0",
            "-0.0",
            "0x1",
            "NaN",
            "-Infinity",
            "1e5000",
            "1e99999",
            "0e9",
            "5.0",
            "5e0",
            "1e-99999999999999999999",
            "1e99999999999999999999",
            "9" * 400,
            "9223372036854775807",
            "9223372036854775808",
            "1082040961.123456",
            "0.0000005",
            "0.00000049999999999999999999",
            "3.4028235677973366e38",
            "1e-46",
        ]
    ),
)

TEXTS = st.one_of(
    st.text(max_size=6).map(json.dumps),
    st.text(max_size=6).map(lambda s: json.dumps(s, ensure_ascii=False)),
    st.sampled_from(
        [
            '"insert"',
            '"delete"',
            '"é"',
            '"\\ud800"',
            '"\\ud83d\\ude00\\u20AC\\b"',
            '"\\ud83d\\u0041"',
            '"\\udc00"',
            '"a\\/b"',
            '"\\x"',
            '"\t"',
            '""',
            '"2024-01-01T00:00:00Z"',
        ]
    ),
    st.datetimes().map(lambda d: json.dumps(d.isoformat() + "Z")),
)

QUOTED = st.one_of(NUMBERS, NUMBERS.map(lambda number: f'"{number}"'))
"""Numbers, of which some are texts."""

VALUES = st.recursive(
    st.one_of(
        QUOTED,
        TEXTS,
        st.sampled_from(["null", "true", "false", "nul", "{}", "[]", "[1,2]", "[1, 2.5 ,-3e2]", "[1,]"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda v: "[" + ", ".join(v) + "]"),
        st.lists(inner, max_size=3).map(
            lambda v: "{" + ",".join(f'"k{i}":{x}' for i, x in enumerate(v)) + "}"
        ),
    ),
    max_leaves=6,
)

KEYS = st.one_of(st.sampled_from([*FIELDS, "other", "srcs", "T", "s\\u0072c", ""]))

SPACE = st.sampled_from(["", "", "", " ", "\n", "\t\r\n "])


@st.composite
def likely(draw: st.DrawFn) -> str:
    """A message with the fields of an event, mostly of the right kinds."""
    kind = draw(st.sampled_from(["edge", "edge", "node"]))
    ids = st.one_of(
        st.integers(-5, 2**63).map(str),
        TEXTS,
        st.sampled_from(['"a"', '"é"', '"a\\n"', "5.0", "-0", '"5"', '"5.0"', '"-0"', '"05"']),
    )
    fields = {"t": draw(st.one_of(QUOTED, TEXTS))}
    if kind == "edge":
        fields |= {"src": draw(ids), "dst": draw(ids)}
    else:
        fields |= {"node": draw(ids)}
    optional = {
        "op": TEXTS,
        "weight": QUOTED,
        "features": st.lists(QUOTED, max_size=4).map(lambda v: "[" + ",".join(v) + "]"),
        "values": st.lists(QUOTED, max_size=4).map(lambda v: "[" + ",".join(v) + "]"),
        "offset": st.integers(-1, 2**31).map(str),
        "label": QUOTED,
        "event_id": st.one_of(NUMBERS, TEXTS),
        "other": VALUES,
    }
    for name in draw(st.lists(st.sampled_from(list(optional)), max_size=3, unique=True)):
        fields[name] = draw(st.one_of(optional[name], st.just("null")))
    space = draw(SPACE)
    return (
        "{"
        + ",".join(
            f'{space}"{k}"{space}:{space}{v}{space}' for k, v in draw(st.permutations(list(fields.items())))
        )
        + "}"
    )


@st.composite
def plain(draw: st.DrawFn) -> str:
    """An event as producers write them: nearly always accepted."""
    ids = draw(
        st.sampled_from(
            [st.integers(-5, 2**62).map(str), st.text("abé/", min_size=1, max_size=3).map(json.dumps)]
        )
    )
    small = st.one_of(
        st.floats(-1e6, 1e6).map(repr), st.floats(-8, 8, width=32).map(repr), st.integers(-99, 99).map(str)
    )
    vector = st.lists(small, min_size=1, max_size=3).map(lambda v: "[" + ", ".join(v) + "]")
    time = st.one_of(
        st.floats(0, 2e9).map(repr),
        st.integers(0, 10**16).map(str),
        st.just('"2024-02-29T23:59:60.1234567+01:30"'),
    )
    fields = {
        "t": draw(time),
        "label": draw(st.sampled_from(["1", "-7", "null"])),
        "x": draw(st.sampled_from(["{}", '{"a":[1,{"b":"\\u00e9"}]}', "-1.5e-3"])),
    }
    if draw(st.booleans()):
        fields |= {
            "src": draw(ids),
            "dst": draw(ids),
            "op": draw(st.sampled_from(['"insert"', '"delete"', "null"])),
        }
        fields |= {
            "weight": draw(small),
            "features": draw(vector),
            "event_id": draw(st.sampled_from(["7", '"e-7"', "null"])),
        }
    elif draw(st.booleans()):
        fields |= {"node": draw(ids), "features": draw(vector)}
    else:
        fields |= {"node": draw(ids), "offset": draw(st.integers(0, 9).map(str)), "values": draw(vector)}
    space = draw(SPACE)
    return (
        space
        + "{"
        + ",".join(f'"{k}":{space}{v}' for k, v in draw(st.permutations(list(fields.items()))))
        + "}"
        + space
    )


@st.composite
def odd(draw: st.DrawFn) -> str:
    """An object of any fields and any values, or several, or none."""
    pairs = draw(st.lists(st.tuples(KEYS, VALUES), max_size=6))
    return (
        draw(SPACE)
        + "{"
        + ",".join(f'"{k}":{v}' for k, v in pairs)
        + draw(st.sampled_from(["}", "},", "", "}{}", "}\n", ",}"]))
    )


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A likely message with bytes changed, inserted or cut."""
    raw = bytearray(draw(st.one_of(likely(), plain())).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(raw)))
        what = draw(st.sampled_from(["cut", "insert", "change"]))
        if what == "cut":
            del raw[place : place + draw(st.integers(1, 3))]
        elif what == "insert":
            raw[place:place] = draw(st.binary(min_size=1, max_size=2))
        elif place < len(raw):
            raw[place] = draw(st.integers(0, 255))
    return bytes(raw)


MESSAGES = st.one_of(
    plain().map(lambda s: s.encode()),
    plain().map(lambda s: s.encode()),
    likely().map(lambda s: s.encode("utf-8", "surrogatepass")),
    odd().map(lambda s: s.encode("utf-8", "surrogatepass")),
    broken(),
    st.binary(max_size=12),
).filter(
    lambda raw: not raw.startswith(b"\0")
)  # Confluent's header, which is taken off before a message is read


def exact(row: dict[str, object]) -> dict[str, object]:
    """A row with floats by their bits: −0.0 is not 0.0, and NaN is itself."""
    bits = {"weight": np.float32(row["weight"]).tobytes()}
    if row["features"] is not None:
        bits["features"] = np.array(row["features"], np.float32).tobytes()
    return row | bits


def assert_twins_agree(messages: list[bytes], ids: IdKind, unit: str, mapping: Mapping) -> None:
    """The columnar scanner accepts the events and refuses the messages, with the same words, that its plain twin does."""
    rows, refusals = read_json(pa.array(messages, pa.large_binary()), ids, unit, mapping)
    got: dict[int, object] = {
        r["message"]: (r["reason"], r["sentence"]) for table in refusals for r in table.to_pylist()
    }
    for part in rows:
        batch = part.draft.batch.to_pylist()
        got |= {int(m): exact(row) for m, row in zip(part.messages, batch, strict=True)}
    expected: dict[int, object] = {}
    for i, message in enumerate(messages):
        try:
            row = read_message(message, ids, unit, mapping)
        except RefusedError as error:
            expected[i] = (error.reason, str(error))
        else:
            expected[i] = exact({name: getattr(row, name) for name in draft_schema(ids).names})
    for i, row in expected.items():
        assert got[i] == row, messages[i]
    assert got.keys() == expected.keys()
