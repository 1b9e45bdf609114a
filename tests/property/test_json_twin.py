"""The columnar JSON scanner against its plain twin, message by message, on anything that looks like a message."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.fields import MAX_PATH_KEYS
from stream.decode import json_grammar, json_message, json_text
from stream.decode.json_events import read_json
from stream.decode.json_message import read_message
from stream.decode.mapping import FIELDS
from stream.decode.reading import RefusedError
from stream.decode.times import SCALE_DIGITS, number_to_us, rfc3339_to_us

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
VALUES = st.recursive(
    st.one_of(
        NUMBERS,
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
        st.integers(-5, 2**63).map(str), TEXTS, st.sampled_from(['"a"', '"é"', '"a\\n"', "5.0", "-0"])
    )
    fields = {"t": draw(st.one_of(NUMBERS, TEXTS))}
    if kind == "edge":
        fields |= {"src": draw(ids), "dst": draw(ids)}
    else:
        fields |= {"node": draw(ids)}
    optional = {
        "op": TEXTS,
        "weight": NUMBERS,
        "features": st.lists(NUMBERS, max_size=4).map(lambda v: "[" + ",".join(v) + "]"),
        "values": st.lists(NUMBERS, max_size=4).map(lambda v: "[" + ",".join(v) + "]"),
        "offset": st.integers(-1, 2**31).map(str),
        "label": NUMBERS,
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
)


def exact(row: dict[str, object]) -> dict[str, object]:
    """A row with floats by their bits: −0.0 is not 0.0, and NaN is itself."""
    bits = {"weight": np.float32(row["weight"]).tobytes()}
    if row["features"] is not None:
        bits["features"] = np.array(row["features"], np.float32).tobytes()
    return row | bits


@settings(max_examples=250, deadline=None)
@given(
    st.lists(MESSAGES, min_size=1, max_size=12),
    st.sampled_from(["int", "string"]),
    st.sampled_from(["s", "ms", "us", "rfc3339"]),
)
@example([b'{"src":1,"dst":2,"t":1}{"src":3,"dst":4,"t":1}', b""], "int", "s")
@example([b'{"src":1', b',"dst":2,"t":3}'], "int", "s")
@example([b'{"src":1,"dst":2,"t":3,"x":' + b"[" * 70 + b"]" * 70 + b"}"], "int", "s")
@example([b'{"src":1,"dst":2,"t":3,"x":' + b"[" * 62 + b"]" * 62 + b"}"], "int", "s")
@example([b'{"src":1,"dst":2,"t":3,"x":' + b'{"a":' * 100_000], "int", "s")
def test_scanner_and_twin_accept_the_same_events_and_refuse_the_same_messages(messages, ids, unit):
    rows, refusals = read_json(pa.array(messages, pa.large_binary()), ids, unit)
    got = {r["message"]: (r["reason"], r["sentence"]) for table in refusals for r in table.to_pylist()}
    for part in rows:
        got |= {
            int(m): exact(row) for m, row in zip(part.messages, part.draft.batch.to_pylist(), strict=True)
        }
    expected = {}
    for i, message in enumerate(messages):
        try:
            row = read_message(message, ids, unit)
        except RefusedError as error:
            expected[i] = (error.reason, str(error))
        else:
            expected[i] = exact({name: getattr(row, name) for name in row.__dataclass_fields__})
    for i, row in expected.items():
        assert got[i] == row, messages[i]
    assert got.keys() == expected.keys()


def bytes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        NUMBERS,
        # Next to the border between two float32.
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(
            lambda f: repr(
                float((np.float64(f) + np.float64(np.nextafter(np.float32(f), np.float32(np.inf)))) / 2)
            )
        ),
    )
)
def test_float32_of_a_number_equals_the_rounded_float64(text):
    data = bytes_of(text)
    end, negative, digits, power, exact_, _ = json_grammar.scan_number(data, 0, len(data))
    if end == len(data):
        certain, value = json_grammar.to_float32(negative, digits, power, exact_)
        if certain:
            with np.errstate(over="ignore"):
                assert np.float32(value).tobytes() == np.float32(float(text)).tobytes()


def test_numbers_that_producers_write_need_no_second_look():
    for value in np.random.default_rng(0).standard_normal(2000):
        for text in (repr(float(value)), repr(float(np.float32(value))), f"{value:.3e}", f"{value:.7f}"):
            data = bytes_of(text)
            _, negative, digits, power, exact_, _ = json_grammar.scan_number(data, 0, len(data))
            certain, got = json_grammar.to_float32(negative, digits, power, exact_)
            assert certain
            assert np.float32(got) == np.float32(float(text))


@settings(max_examples=300, deadline=None)
@given(NUMBERS, st.sampled_from(["s", "ms", "us"]))
def test_microseconds_of_a_number_equal_exact_decimal_arithmetic(text, unit):
    data = bytes_of(text)
    end, negative, digits, power, exact_, _ = json_grammar.scan_number(data, 0, len(data))
    if end == len(data):
        certain, micros = json_grammar.to_us(negative, digits, power + SCALE_DIGITS[unit], exact_)
        if certain:
            assert micros == number_to_us(text, unit)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.builds(
            "{}-{:02}-{:02}{}{:02}:{:02}:{:02}{}{}".format,
            st.one_of(st.integers(1990, 2030), st.sampled_from(["0000", "0001", "1900", "2000", "9999"])),
            st.integers(0, 13),
            st.integers(0, 32),
            st.sampled_from("Tt "),
            st.integers(0, 24),
            st.integers(0, 60),
            st.integers(0, 61),
            st.one_of(st.just(""), st.just("."), st.from_regex(r"\A\.[0-9]{1,12}\Z")),
            st.sampled_from(["Z", "z", "", "+00:00", "-23:59", "+24:00", "+1:00", "+01:60", "+0100"]),
        ),
        st.datetimes().map(lambda d: d.isoformat() + "+02:30"),
    )
)
def test_rfc3339_kernel_equals_its_twin(text):
    data = bytes_of(text)
    try:
        expected = rfc3339_to_us(text)
    except ValueError:
        expected = None
    certain, micros = json_grammar.rfc3339(data, 0, len(data))
    assert (micros if certain else None) == expected


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(st.binary(max_size=8), st.text(max_size=4).map(lambda s: s.encode("utf-8", "surrogatepass")))
)
@example(b"\xf4\x90\x80\x80")
@example(b"\xc0\xaf")
@example(b"\xed\xa0\x80")
def test_utf8_kernel_equals_python(raw):
    try:
        raw.decode("utf-8")
        expected = True
    except UnicodeDecodeError:
        expected = False
    assert json_text.is_utf8(np.frombuffer(raw, np.uint8), 0, len(raw)) == expected


def test_depth_limits_leave_the_scanner_the_stricter_one():
    assert MAX_PATH_KEYS + json_grammar.MAX_SKIPPED_DEPTH < json_message.MAX_DEPTH
