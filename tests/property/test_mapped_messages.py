"""Topics whose messages keep the fields elsewhere: the scanner against the reference, on hostile nested messages."""

import json

from drawn_json import NUMBERS, SPACE, TEXTS, VALUES, assert_twins_agree
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freshet_graph.schemas.config import Topic
from freshet_graph.stream.decode.mapping import Mapping

MAPPINGS = [
    Mapping.of(Topic(name="t", **more))
    for more in (
        {"fields": {"src": "card.id", "dst": "merchant.id", "t": "created_at"}},
        {
            "fields": {
                "src": "card.id",
                "dst": "card.merchant.id",
                "t": "card.t",
                "weight": "amount",
                "features": ["amount", "card.risk", "card.id"],
                "event_id": "card.id",
                "op": "op",
            },
            "ops": {"c": "insert", "u": "insert", "d": "delete", "é": "delete"},
            "id_prefix": {"src": "card:", "dst": "m:"},
        },
        {
            "fields": {
                "src": "a.src",
                "dst": "a.dst",
                "node": "n.id",
                "t": "t",
                "features": "n.f",
                "offset": "n.o",
                "values": "n.v",
                "label": "n.l",
            },
            "id_prefix": {"node": "n:", "dst": "é"},
        },
        {"fields": {"node": r"user\.id", "t": r"a\\.b.c", "features": ["f"], "label": "a\\\\.l"}},
        {
            "fields": {
                "src": "a",
                "dst": "b",
                "t": "t",
                "features": [{"hash": "c.x", "width": 3}, "c.x", {"log": "f"}, {"hash": "f", "width": 5}],
            }
        },
        {"ops": {"+": "insert", "-": "delete"}, "id_prefix": {"src": "x"}},
        {
            "fields": {"src": "a", "dst": "b", "t": "t", "op": "o"},
            "ops": {True: "delete", "1": "insert", None: "delete"},
        },
    )
]


@st.composite
def nested(draw: st.DrawFn, mapping: Mapping) -> str:
    """A message with values at most of the paths, other keys around them, and now and then something odd."""
    ids = st.one_of(
        st.integers(-5, 2**62).map(str), st.sampled_from(['"a"', '"é"', '"a\\n"', '""', "-0", "5.0"])
    )
    numbers = st.one_of(
        st.integers(-99, 99).map(str),
        st.floats(-8, 8, width=32).map(repr),
        st.floats(-8, 8, width=32).map(lambda number: f'"{number!r}"'),
    )
    likely = {
        "op": st.sampled_from(
            [
                "true",
                "false",
                "0",
                "1",
                "1.0",
                "null",
                '"1"',
                "[]",
                '"c"',
                '"d"',
                '"u"',
                '"+"',
                '"é"',
                '"insert"',
                '"x"',
            ]
        ),
        "t": st.one_of(st.integers(0, 2**40).map(str), NUMBERS),
        "label": st.integers(-9, 9).map(str),
        "offset": st.integers(0, 9).map(str),
    }
    if mapping.feature_parts == 0:
        likely["features"] = likely["values"] = st.lists(numbers, max_size=3).map(
            lambda v: f"[{','.join(v)}]"
        )
    wanted = draw(st.sampled_from(["all", "edge", "node"]))
    tree: dict[str, object] = {}
    for (name, _), keys in mapping.paths:
        if (wanted == "edge" and name in ("node", "offset", "values")) or (
            wanted == "node" and name in ("src", "dst")
        ):
            continue
        if draw(st.integers(0, 19)) == 0:
            continue
        kind = ids if name in ("src", "dst", "node", "event_id") else likely.get(name, numbers)
        odd = draw(st.integers(0, 24)) == 0
        value = draw(st.one_of(VALUES, TEXTS, st.just("null")) if odd else kind)
        level = tree
        for key in keys[:-1]:
            if not isinstance(level.get(key), dict):
                level[key] = {}
            level = level[key]  # type: ignore[assignment]
        level.setdefault(keys[-1], value)
    return text(draw, tree)


def text(draw: st.DrawFn, level: dict[str, object]) -> str:
    pairs = []
    for key, below in level.items():
        written = json.dumps(key, ensure_ascii=draw(st.booleans()))
        if isinstance(below, dict):
            odd = draw(st.integers(0, 29)) == 0
            pairs.append((written, draw(VALUES) if odd else text(draw, below)))
        else:
            pairs.append((written, below))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        key = draw(
            st.sampled_from(['"other"', '"id"', '"card"', '"c\\u0061rd"', '"n"', '"x.y"', '""', '"card.id"'])
        )
        pairs.append((key, draw(st.one_of(VALUES, st.just("null")))))
    space = draw(SPACE)
    pairs = draw(st.permutations(pairs))
    return "{" + f"{space},".join(f"{space}{key}{space}:{space}{value}" for key, value in pairs) + space + "}"


def cut(draw: st.DrawFn, raw: bytes) -> bytes:
    place = draw(st.integers(0, len(raw)))
    return draw(st.sampled_from([raw[:place], raw[:place] + raw[place + 1 :], raw + raw[place:]]))


@st.composite
def polls(draw: st.DrawFn) -> tuple[Mapping, list[bytes]]:
    mapping = draw(st.sampled_from(MAPPINGS))
    messages = [
        m.encode("utf-8", "surrogatepass") for m in draw(st.lists(nested(mapping), min_size=1, max_size=8))
    ]
    return mapping, [cut(draw, m) if draw(st.integers(0, 9)) == 0 else m for m in messages]


@settings(max_examples=125, deadline=None)
@given(polls(), st.sampled_from(["int", "string"]), st.sampled_from(["s", "ms"]))
@example((MAPPINGS[0], [b'{"card":{"id":1,"id":1},"merchant":{"id":2},"created_at":3}']), "int", "s")
@example((MAPPINGS[0], [b'{"card":{"id":1},"card":null,"merchant":{"id":2},"created_at":3}']), "int", "s")
@example((MAPPINGS[0], [b'{"card":[{"id":1}],"merchant":{"id":2},"created_at":3}']), "int", "s")
@example((MAPPINGS[0], [b'{"card":{},"merchant":{"id":2},"created_at":3}', b'{"card":{"id":1}}']), "int", "s")
@example(
    (
        MAPPINGS[0],
        [b'{"card":{"id":1,"x":' + b"[" * 61 + b"]" * 61 + b'},"merchant":{"id":2},"created_at":3}'],
    ),
    "int",
    "s",
)
@example(
    (
        MAPPINGS[0],
        [b'{"card":{"id":1,"x":' + b"[" * 63 + b"]" * 63 + b'},"merchant":{"id":2},"created_at":3}'],
    ),
    "int",
    "s",
)
@example((MAPPINGS[1], [b'{"amount":1,"card":{"id":5,"t":1,"merchant":{"id":7}}}']), "string", "s")
@example(
    (MAPPINGS[1], [b'{"amount":1,"card":{"risk":0,"id":5,"t":1,"merchant":{"id":7}},"op":"d"}']),
    "string",
    "s",
)
def test_scanner_and_reference_read_the_same_from_mapped_messages(poll, ids, unit):
    mapping, messages = poll
    if any(mapping.prefix):  # which the configuration takes with string ids only
        ids = "string"
    assert_twins_agree(messages, ids, unit, mapping)
