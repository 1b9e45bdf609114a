"""Avro topics: schemas of a registry, what one may not cost, and what happens while it does not answer."""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
import typer
from decoding import NOW_US, decode, decoder, poll
from fastavro import parse_schema, schemaless_writer
from registry_server import Registry, confluent, serving
from typer.testing import CliRunner

from freshet_graph.schemas.config import SchemaRegistry, Topic
from freshet_graph.stream.commands.config import config as config_command
from freshet_graph.stream.decode import avro_kernel
from freshet_graph.stream.decode.formats import avro, registered, schema_registry
from freshet_graph.stream.decode.formats.interface import UnavailableError
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient
from freshet_graph.stream.job.decoding import Decoding
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.service.failure import Failure


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": k, "type": t} for k, t in fields.items()]}


EDGE = record("Edge", src="long", dst="long", t="long")


def value(schema: Any, row: dict[str, Any]) -> bytes:
    written = BytesIO()
    schemaless_writer(written, parse_schema(schema), row)
    return written.getvalue()


def read(
    registry: Registry, *values: bytes | None, topic: dict[str, Any] | None = None, **more: Any
) -> MicroBatch:
    section = {"url": registry.url} | more.pop("section", {})
    return decode(*values, topic={"format": "avro"} | (topic or {}), registry=section, **more)


def edge(number: int, src: int, *, schema: Any = EDGE, **more: Any) -> bytes:
    return confluent(number, value(schema, {"src": src, "dst": 2, "t": 10**15, **more}))


def test_messages_of_several_schemas_are_read_in_their_order(registry: Registry) -> None:
    wider = record("Edge", id="string", src="long", dst="long", t="long", weight=["null", "double"])
    one, two = registry.add(EDGE), registry.add(wider)
    rows = [edge(one, 1), edge(two, 2, schema=wider, id="x", weight=0.5), edge(one, 3), None]
    batch = read(registry, *rows, edge(two, 4, schema=wider, id="y", weight=float("inf")), edge(one, 5))
    assert batch.events["src"].to_pylist() == [1, 2, 3, 5]
    assert batch.events["weight"].to_pylist() == [1.0, 0.5, 1.0, 1.0]
    assert [(r["offset"], r["sentence"]) for r in batch.rejects.to_pylist()] == [
        (108, "weight is infinite or beyond float32 (±3.4e38)")
    ]
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2"], "each schema is asked for once"


def test_a_payments_topic_is_read_as_it_is(registry: Registry) -> None:
    payment = record(
        "Payment",
        id={"type": "string", "logicalType": "uuid"},
        card=record("Card", id="long", tags={"type": "array", "items": "string"}),
        merchant=[
            "null",
            record("Merchant", id=["null", "string"], place=record("Place", lat="float", lon="double")),
        ],
        amount="double",
        at={"type": "long", "logicalType": "timestamp-millis"},
        kind={"type": "enum", "name": "Kind", "symbols": ["PAID", "REFUNDED"]},
        extra={"type": "map", "values": "Card"},
    )
    number = registry.add(payment)
    card = {"id": 17, "tags": ["a", "b"]}
    row = {
        "id": "p-1",
        "card": card,
        "merchant": {"id": "m/9", "place": {"lat": 1.5, "lon": 2.5}},
        "amount": 12.5,
        "at": 1_704_110_400_250,
        "kind": "PAID",
        "extra": {"x": card},
    }
    rows = [row, row | {"kind": "REFUNDED"}, row | {"merchant": None}]
    topic = {
        "fields": {
            "src": "card.id",
            "dst": "merchant.id",
            "t": "at",
            "op": "kind",
            "weight": "amount",
            "features": ["merchant.place.lat", "merchant.place.lon"],
            "event_id": "id",
        },
        "ops": {"PAID": "insert", "REFUNDED": "delete"},
        "id_prefix": {"src": "card:"},
    }
    messages = [confluent(number, value(payment, each)) for each in rows]
    batch = read(registry, *messages, topic=topic, ids="string", features={"edge": 2})
    assert batch.events.drop_columns(["offset"]).slice(0, 1).to_pylist() == [
        {
            "op": 1,
            "src": "card:17",
            "dst": "m/9",
            "t": 1_704_110_400_250_000,
            "weight": 12.5,
            "features": [1.5, 2.5],
            "feature_offset": None,
            "label": None,
            "event_id": "p-1",
        }
    ]
    assert batch.events["op"].to_pylist() == [1, -1]
    (reject,) = batch.rejects.to_pylist()
    assert (reject["offset"], reject["reason"], reject["raw"]) == (104, "missing_field", messages[2])


def test_op_may_be_a_word(registry: Registry) -> None:
    schema = record("Edge", src="long", dst="long", t="long", op=["null", "string"])
    number = registry.add(schema)
    words = [None, "insert", "delete", "other"]
    batch = read(registry, *(edge(number, 1, schema=schema, op=word) for word in words))
    assert batch.events["op"].to_pylist() == [1, 1, -1]
    assert batch.rejects["reason"].to_pylist() == ["unknown_op"]


@pytest.mark.parametrize(
    ("logical", "t"),
    [
        ("timestamp-millis", 1_704_110_400_250),
        ("timestamp-micros", 1_704_110_400_250_000),
        ("timestamp-nanos", 1_704_110_400_250_000_000),
    ],
)
def test_a_time_has_the_unit_of_its_logical_type(registry: Registry, logical: str, t: int) -> None:
    schema = record("Edge", src="long", dst="long", t={"type": "long", "logicalType": logical})
    raw = confluent(registry.add(schema), value(EDGE, {"src": 1, "dst": 2, "t": t}))
    assert read(registry, raw).events["t"].to_pylist() == [1_704_110_400_250_000]


def test_a_schema_may_refer_to_others(registry: Registry) -> None:
    registry.add(record("a.Inner", id="long"), "inner")
    middle = record("a.Middle", inner="a.Inner")
    registry.add(middle, "middle", references=[{"name": "a.Inner", "subject": "inner", "version": 1}])
    outer = record("a.Outer", src="a.Middle", dst="a.Inner", t="long")
    number = registry.add(outer, references=[{"name": "a.Middle", "subject": "middle", "version": 1}])
    raw = confluent(number, b"\x0a\x0c\x80\x80\x02")  # 5, 6, 16384
    topic = {"fields": {"src": "src.inner.id", "dst": "dst.id", "t": "t"}}
    batch = read(registry, raw, topic=topic, time_bounds=(0, None))
    assert batch.events.select(["src", "dst", "t"]).to_pylist() == [{"src": 5, "dst": 6, "t": 16384}]


NESTED: Any = record("Edge", src="long", dst="long", t="long")
for _depth in range(20):
    NESTED = record(f"N{_depth}", a=NESTED, b=f"N{_depth - 1}" if _depth else "Edge")
NOTHING = {
    "type": "array",
    "items": record("Empty", a="null", b={"type": "fixed", "name": "None0", "size": 0}),
}


EMPTY = record("Wide", **{f"f{i}": "null" for i in range(500)})
WIDE = record("Outer", wide={"type": "array", "items": ["null", record("Fat", f="boolean", wide=EMPTY)]})
DEEP: Any = "long"
for _ in range(300):
    DEEP = {"type": "array", "items": DEEP}


def fixed(size: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "Fixed", "size": size}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (record("Loop", src="long", next=["null", "Loop"]), "recursive: Loop is inside of itself"),
        (record("Edge", src="long", dst="long", t="long", x=NOTHING), "3 values per byte in the items of x"),
        (
            record("Edge", src="long", dst="long", t="long", x=WIDE),
            "3 values per byte in the items of x.wide",
        ),
        (
            record("Edge", src="long", dst="long", t="long", x=EMPTY),
            "messages of more than 3 values per byte",
        ),
        (record("Edge", src="long", dst="long", t="long", x=DEEP), "nested deeper than 64 types"),
        (record("Edge", src="long", dst="long", t="long", x=fixed("x")), "a fixed type Fixed of size 'x'"),
        (record("Edge", src="long", dst="long", t="long", x=fixed(-5)), "a fixed type Fixed of size -5"),
        (NESTED, "more than 20000 types"),
        ({"type": "array", "items": EDGE}, "is array, expected a record"),
        ({"type": "wrong"}, "its Avro schema cannot be read"),
        ("no json {", "is not JSON"),
    ],
)
def test_a_hostile_schema_is_refused(registry: Registry, schema: Any, words: str) -> None:
    number, good = registry.add(schema), registry.add(EDGE)
    batch = read(registry, confluent(number, b"\x02" * 50_000), edge(good, 3))
    (reject,) = batch.rejects.to_pylist()
    assert reject["reason"] == "unknown_schema"
    assert words in reject["sentence"]
    assert batch.events["src"].to_pylist() == [3]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"src": "string"}, "src is the string '', but ids are int64"),
        (
            {"weight": ["null", "string", "double"]},
            "field weight is a union of double, string, expected one type",
        ),
        ({"features": {"type": "array", "items": "string"}}, "field features is an array of string"),
        (
            {"weight": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
            "weight is a decimal of 0 bytes",
        ),
    ],
)
def test_a_field_of_another_type_is_named(registry: Registry, more: Any, words: str) -> None:
    schema = record("Edge", **({"src": "long", "dst": "long", "t": "long"} | more))
    raw = confluent(registry.add(schema), bytes(len(schema["fields"])))
    (sentence,) = read(registry, raw).rejects["sentence"].to_pylist()
    assert words in sentence


def test_a_missing_field_is_named(registry: Registry) -> None:
    number = registry.add(record("Edge", src="long", t="long"))
    (sentence,) = read(registry, confluent(number, b"\0\0")).rejects["sentence"].to_pylist()
    assert sentence == "column dst is missing; found src, t"


def test_bytes_that_are_no_value_are_refused_one_by_one(registry: Registry) -> None:
    schema = record("Edge", src="long", dst="long", t="long", event_id="string")
    number = registry.add(schema)
    good = edge(number, 1, schema=schema, event_id="é")
    wrong = [
        good[:-1],
        good + b"\0",
        good[:-2] + b"\xff\xff",
        good[:-3] + b"\xfe\xff\xff\xff\x0f",
        b"\0\0\0\0",
        b"\1" + good,
    ]
    batch = read(registry, good, *wrong, good)
    assert batch.events.num_rows == 2
    assert batch.rejects["reason"].to_pylist() == ["not_avro"] * len(wrong)
    assert "has 1 bytes after its value" in batch.rejects["sentence"].to_pylist()


def test_a_row_of_many_columns_that_may_be_null_is_within_the_bounds(registry: Registry) -> None:
    """Absent ones take a byte each, and a few hundred columns of nothing none."""
    wide = record("Row", **{f"f{i}": ["null", record(f"R{i}", a="long", b="double")] for i in range(300)})
    rows = {"type": "array", "items": wide}
    none = record("None", **{f"n{i}": "null" for i in range(200)})
    schema = record("Edge", src="long", rows=rows, one=["null", "Row"], none=none, dst="long", t="long")
    absent = dict.fromkeys((f"f{i}" for i in range(300)), None)
    nothing = dict.fromkeys((f"n{i}" for i in range(200)), None)
    number = registry.add(schema)
    batch = read(registry, edge(number, 1, schema=schema, rows=[absent] * 3, one=absent, none=nothing))
    assert batch.events["src"].to_pylist() == [1]


def test_a_union_of_numbers_is_a_double(registry: Registry) -> None:
    schema = record(
        "Edge", src=["null", "long", "double"], dst="long", t="long", weight=["double", "long"],
        features={"type": "array", "items": ["long", "float"]},
    )  # fmt: skip
    number = registry.add(schema)
    large = {"weight": 2**60 + 1, "features": [2**60 + 1, 0.5]}
    batch = read(
        registry,
        edge(number, 1, schema=schema, **large),
        edge(number, 2**60 + 1, schema=schema, **large),
        edge(number, 3, schema=schema, **large),
        features={"edge": 2},
    )
    assert batch.events["src"].to_pylist() == [1, 3]
    assert batch.events["weight"].to_pylist() == [2.0**60] * 2
    assert batch.events["features"].to_pylist() == [[2.0**60, 0.5]] * 2
    (reject,) = batch.rejects.to_pylist()
    assert (reject["reason"], reject["sentence"][:28]) == ("bad_id", "src is 1.152921504606847e+18")


@pytest.mark.parametrize(
    "references", ["abc", [1], [{}], [{"subject": "s"}], [{"subject": "s", "version": "new"}], {"a": 1}, 7]
)
def test_references_that_are_none_refuse_their_schema_and_no_other(
    registry: Registry, references: Any
) -> None:
    number, good = registry.add(EDGE, references=references), registry.add(EDGE)
    batch = read(registry, *[edge(number, 1)] * 2, edge(good, 2))
    assert batch.events["src"].to_pylist() == [2]
    assert batch.rejects["reason"].to_pylist() == ["unknown_schema"] * 2
    assert "refers to others without subject and version" in batch.rejects["sentence"][0].as_py()


def test_lists_that_no_event_has_are_skipped_however_many_objects_they_would_be(registry: Registry) -> None:
    rows = {"type": "array", "items": record("Row", a="boolean", b=["null", "long"])}
    schema = record("Edge", src="long", rows=rows, dst="long", t="long")
    number = registry.add(schema)
    raw = edge(number, 7, schema=schema, rows=[{"a": True, "b": None}] * 45_000)
    given = decoder(topic={"format": "avro"}, registry={"url": registry.url})
    assert given.decode(poll([raw])).events["src"].to_pylist() == [7]
    tracemalloc.start()
    try:
        given.decode(poll([raw]))
        assert tracemalloc.get_traced_memory()[1] < 10 * len(raw)
    finally:
        tracemalloc.stop()


def test_an_unknown_id_is_refused_and_asked_for_once_a_minute(registry: Registry, monkeypatch: Any) -> None:
    now = [1000.0]
    monkeypatch.setattr(schema_registry.time, "monotonic", lambda: now[0])
    given = decoder(topic={"format": "avro"}, registry={"url": registry.url})
    for _ in range(2):
        (reject,) = given.decode(poll([edge(1, 5)])).rejects.to_pylist()
        assert reject["reason"] == "unknown_schema"
        assert reject["sentence"] == f"the schema registry at {registry.url} has no schema 1"
    assert len(registry.asked) == 1
    registry.add(EDGE)
    now[0] += 61
    assert given.decode(poll([edge(1, 5)])).events.num_rows == 1


def test_ids_at_random_are_not_a_request_each(registry: Registry, monkeypatch: Any) -> None:
    monkeypatch.setattr(registered, "UNKNOWN_AT_ONCE", 3)
    number = registry.add(EDGE)
    flood = [confluent(1000 + i, b"") for i in range(50)]
    batch = read(registry, *flood, edge(number, 1), edge(number, 2))
    assert batch.events["src"].to_pylist() == [1, 2], "the schema of most messages is asked for first"
    assert batch.rejects["reason"].to_pylist() == ["unknown_schema"] * 50
    assert len(registry.asked) == 4


def edges(registry: Registry, count: int) -> list[int]:
    """Ids of so many schemas with the fields of ``EDGE``."""
    return [registry.add(EDGE | {"name": f"Edge{i}"}) for i in range(count)]


def test_of_too_many_schemas_the_least_recently_used_is_asked_for_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered, "KEPT_SCHEMAS", 2)
    one, two, three = edges(registry, 3)
    given = decoder(topic={"format": "avro"}, registry={"url": registry.url})
    for number in (one, two, one, three, one, three, two):
        assert given.decode(poll([edge(number, 1)])).events.num_rows == 1
    assert registry.asked == [f"/schemas/ids/{number}" for number in (one, two, three, two)]


def test_a_poll_may_have_more_schemas_than_are_kept(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered, "KEPT_SCHEMAS", 2)
    numbers = edges(registry, 6)
    given = decoder(topic={"format": "avro"}, registry={"url": registry.url})
    for each in (numbers, numbers[::-1]):
        batch = given.decode(poll([edge(number, number) for number in each]))
        assert batch.events["src"].to_pylist() == each
    assert len(registry.asked) == len(numbers), "those of the poll before are still known"


def test_a_registry_that_wants_a_login_gets_it(registry: Registry, tmp_path: Any) -> None:
    registry.login = "reader:s3cret"
    number = registry.add(EDGE)
    with pytest.raises(UnavailableError, match=r"HTTP 401\. Check kafka\.schema_registry\.username"):
        read(registry, edge(number, 1))
    (tmp_path / "password").write_text("s3cret\n")
    section = {"username": "reader", "password_file": str(tmp_path / "password")}
    assert read(registry, edge(number, 1), section=section).events.num_rows == 1


@pytest.mark.parametrize("key", ["password_file", "ssl_cafile"])
def test_messages_are_kept_while_a_file_of_the_registry_is_replaced(
    registry: Registry, key: str, tmp_path: Any
) -> None:
    url = registry.url if key == "password_file" else registry.url.replace("http:", "https:")
    login = {"username": "reader"} if key == "password_file" else {}
    section = {"url": url, **login, key: str(tmp_path / "gone")}
    given = decoder(topic={"format": "avro"}, registry=section)
    with pytest.raises(UnavailableError, match=rf"kafka\.schema_registry\.{key}"):
        given.prepare(poll([edge(registry.add(EDGE), 1)] * 3))
    assert registry.asked == []


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"url": "ftp://x"}, "schema_registry.url"),
        ({"url": "http://x,y"}, "several with commas between them"),
        ({"url": "http://x:port"}, "must be an address such as http://registry:8081"),
        ({"url": "http://x", "username": "u"}, "Give both or neither"),
        ({"url": "http://x", "username": "u", "password": "p", "password_file": "f"}, "Give one of them"),
    ],
)
def test_a_wrong_section_names_the_key(section: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=r"schema_registry") as caught:
        decoder(topic={"format": "avro"}, registry=section)
    assert words in str(caught.value)


def test_without_a_registry_the_key_is_named() -> None:
    with pytest.raises(Failure, match=r"topic edges: .* Give its address in kafka\.schema_registry\.url"):
        decoder(topic={"format": "avro"})


def test_another_service_at_the_address_is_not_taken_for_an_unknown_schema(registry: Registry) -> None:
    with pytest.raises(UnavailableError, match=r"HTTP 404\. Check kafka\.schema_registry\.url"):
        read(registry, edge(1, 1), section={"url": f"{registry.url}/elsewhere"})


@pytest.mark.parametrize(
    "url",
    ["http://svc:hunter2@registry", "http://a,https://svc:hunter2@b", "svc:hunter2@registry", "ftp://u:hunter2@x"],
)  # fmt: skip
def test_a_login_in_the_address_is_refused_and_printed_nowhere(url: str, tmp_path: Any) -> None:
    topics = [{"name": "edges", "format": "avro"}]
    keys = {"bootstrap": "b:1", "topics": topics, "schema_registry": {"url": url}}
    (tmp_path / "c.yaml").write_text(json.dumps({"graph": "g", "store": str(tmp_path), "kafka": keys}))
    app = typer.Typer()
    app.command()(config_command)
    done = CliRunner().invoke(app, ["--config", str(tmp_path / "c.yaml"), "--debug"])
    assert done.exit_code == 1
    assert "give it as kafka.schema_registry.username and kafka.schema_registry.password" in done.output
    assert "hunter2" not in done.output


def answering(status: int, body: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def act(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, text)
        handler.end_headers()
        handler.wfile.write(body)

    return act


LOGIN = {"username": "svc", "password": "hunter2"}


def test_a_redirection_takes_the_login_to_the_same_origin_only(registry: Registry) -> None:
    number = registry.add(EDGE)

    def moved(handler: BaseHTTPRequestHandler) -> None:
        registry.act = None
        answering(302, b"", Location=f"{registry.url}/schemas/ids/{number}")(handler)

    registry.act = moved
    assert RegistryClient(SchemaRegistry(url=f"{registry.url}/old", **LOGIN)).schema(number) == [EDGE]
    assert [login is not None for login in registry.logins] == [True, True]
    with serving() as other:
        number = other.add(EDGE)
        registry.act = answering(302, b"", Location=f"{other.url}/schemas/ids/{number}")
        assert RegistryClient(SchemaRegistry(url=registry.url, **LOGIN)).schema(number) == [EDGE]
        assert other.logins == [None]
        assert registry.logins[-1] is not None


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("file:///etc/passwd", "an address that is not HTTP"),
        ("http://u:hunter2@127.0.0.1/", "or has a login"),
        ("/round", "more than 5 redirections"),
    ],
)
def test_a_redirection_elsewhere_is_not_followed(registry: Registry, location: str, words: str) -> None:
    registry.act = answering(302, b"", Location=location)
    with pytest.raises(UnavailableError, match=words) as caught:
        RegistryClient(SchemaRegistry(url=registry.url, **LOGIN)).schema(1)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("slow", ["headers", "body"])
def test_an_answer_has_to_be_whole_in_time_however_steadily_it_comes(registry: Registry, slow: str) -> None:
    """Each piece comes within the time-out, and the whole would be a schema after ten times as long."""
    whole = json.dumps({"schema": json.dumps(EDGE)}).encode()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        head = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
        quick, slowly = (b"", head) if slow == "headers" else (head, whole)
        handler.wfile.write(quick)
        with suppress(OSError):
            for n in range(20):
                handler.wfile.write(slowly[n * len(slowly) // 20 : (n + 1) * len(slowly) // 20])
                time.sleep(0.1)
            handler.wfile.write(whole if slow == "headers" else b"")

    registry.act = drip
    with pytest.raises(UnavailableError, match="does not answer: timed out"):
        RegistryClient(SchemaRegistry(url=registry.url, timeout_s=0.2)).schema(1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"schema": "' + b"x" * 1000, "with more than"),
        (b"<html>login</html>", "HTTP 200. It has no schema. Check kafka.schema_registry.url"),
        (b'{"error_code": 1}', "HTTP 200. It has no schema"),
        (b'{"schema": 5}', "HTTP 200. It has no schema"),
        (b"[" * 900, "HTTP 200. It has no schema"),
    ],
)
def test_an_answer_that_is_no_schema_is_asked_for_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, body: bytes, words: str
) -> None:
    monkeypatch.setattr(schema_registry, "ANSWER_BYTES", 1000)
    registry.act = answering(200, body)
    with pytest.raises(UnavailableError) as caught:
        read(registry, edge(1, 1))
    assert words in str(caught.value)


def test_of_several_addresses_the_one_that_answers_is_asked(registry: Registry) -> None:
    numbers = [registry.add(EDGE), registry.add(record("Other", src="long"))]
    with serving() as absent:
        absent.status = 503
        client = RegistryClient(SchemaRegistry(url=f"{absent.url}, {registry.url}/"))
        assert [client.schema(number)[0]["name"] for number in numbers] == ["Edge", "Other"]
        assert absent.asked == ["/schemas/ids/1"], "the one that answered is asked first from then on"
        registry.status = 500
        with pytest.raises(
            UnavailableError, match=rf"{registry.url} .*HTTP 500.*; .*{absent.url} .*HTTP 503"
        ):
            client.schema(3)


def test_a_proxy_of_the_environment_is_named_without_its_login(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", registry.url.replace("//", "//me:hunter2@"))
    monkeypatch.setenv("no_proxy", "")
    registry.status = 502
    with pytest.raises(UnavailableError) as caught:
        RegistryClient(SchemaRegistry(url="http://registry.example:8081")).schema(1)
    assert str(caught.value).endswith(
        f"HTTP 502. It is asked again. The proxy {registry.url.removeprefix('http://')} was asked, which http_proxy in the "
        "environment names. Put registry.example into no_proxy to go past it"
    )
    assert registry.asked == ["http://registry.example:8081/schemas/ids/1"]


class Present:
    """A clock that is right."""

    error_s = 0.0
    now_us = staticmethod(lambda: NOW_US)

    def check(self, raw: object) -> None: ...


def decoding(registry: Registry, wait: Callable[[float], bool], **more: bool) -> Decoding:
    config = decoder(topic={"format": "avro"}, registry={"url": registry.url}).config
    kafka = config.kafka.model_copy(update={"topics": [Topic(name="edges", format="avro")]})
    return Decoding(config.model_copy(update={"kafka": kafka}), Present(), wait, lambda _: None, **more)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for schemas is up after each request, as it is if one takes seconds."""
    monkeypatch.setattr(registered, "PREPARE_S", 0.0)


@pytest.mark.usefixtures("hasty")
def test_a_job_stops_between_the_schemas_of_a_poll(registry: Registry) -> None:
    messages = poll([edge(number, 8) for number in edges(registry, 40)])
    waits: list[float] = []

    def stopped(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    given = decoding(registry, stopped)
    batches, reasons = given.batches(messages), []
    for batch in batches:
        assert (batch.events.num_rows, batch.end_offset) == (0, 100), "what was read before can be committed"
        reasons.append(given.reason)
    assert (len(registry.asked), waits) == (3, [0, 0, 0])
    wait = "topic edges partition 3 waits: {} of the 40 schemas of its messages were fetched so far"
    assert reasons == [wait.format(n) for n in (1, 2, 3)]
    assert given.reason is None
    given = decoding(registry, lambda _: False, gives_up=True)
    *_, batch = given.batches(messages)
    assert batch.events.num_rows == 40, "schemas that come slowly don't end a job either"


@pytest.mark.usefixtures("hasty")
def test_an_unknown_id_is_asked_for_once_per_poll_however_long_it_takes(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered, "UNKNOWN_AT_ONCE", 5)
    now = [1000.0]
    monkeypatch.setattr(schema_registry.time, "monotonic", lambda: now[0])

    def wait(_: float) -> bool:
        now[0] += registered.UNKNOWN_S
        return False

    messages = poll([confluent(1000 + i, b"") for i in range(8)])
    *_, batch = decoding(registry, wait).batches(messages)
    assert len(registry.asked) == 5
    unknown = [f"the schema registry at {registry.url} has no schema {1000 + i}" for i in range(5)]
    not_asked = [
        f"schema {1005 + i} was not asked for: 5 ids of this poll were unknown already" for i in range(3)
    ]
    assert batch.rejects["sentence"].to_pylist() == unknown + not_asked


def test_messages_are_kept_while_the_registry_does_not_answer(registry: Registry) -> None:
    number = registry.add(EDGE)
    registry.status = 503
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 2:
            registry.status = None
        return False

    read = list(decoding(registry, wait).batches(poll([edge(number, 8)])))
    assert [(batch.events.num_rows, batch.end_offset) for batch in read] == [(0, 100), (0, 100), (1, 102)]
    registry.status = 503
    unknown = poll([edge(number + 1, 8)])
    with pytest.raises(Failure, match="HTTP 503"):
        list(decoding(registry, wait, gives_up=True).batches(unknown))


def test_rows_of_several_reads_keep_their_sentences(registry: Registry) -> None:
    other = record("Edge", src="long", dst="long", t="long", weight="double")
    one, two = registry.add(EDGE), registry.add(other)
    bad = edge(one, 1, t=5)
    batch = read(
        registry,
        edge(two, 1, schema=other, weight=float("nan")),
        bad,
        edge(two, 2, schema=other, weight=1.0),
        bad,
    )
    told = [sentence.split(",")[0] for sentence in batch.rejects["sentence"].to_pylist()]
    assert told == ["weight is nan", "t is 1970-01-01T00:00:00.000005Z", "t is 1970-01-01T00:00:00.000005Z"]
    assert pa.types.is_int64(batch.events["src"].type)


def fields_of(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields]}


AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}
PAID = {"fields": {"src": "card", "dst": "shop", "t": "at", "weight": "amount", "event_id": "id"}}
PAYMENTS = [
    # The first; a field added and others in another order; promoted; renamed; removed; without an end.
    fields_of("Paid", {"name": "card", "type": "int"}, {"name": "shop", "type": "int"}, AT),
    fields_of(
        "Paid",
        {"name": "amount", "type": "float", "default": 0.5},
        AT,
        {"name": "shop", "type": "int"},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}, "default": {}},
        {"name": "card", "type": "int"},
        {"name": "id", "type": ["null", "string"], "default": None},
    ),
    fields_of(
        "Paid",
        {"name": "card", "type": "long"},
        {"name": "shop", "type": ["null", "long"]},
        AT,
        {"name": "amount", "type": "double"},
        {"name": "id", "type": "string"},
    ),
    fields_of(
        "Paid",
        {"name": "id", "type": "string", "aliases": ["key"]},
        {"name": "card_id", "type": "long", "aliases": ["card"]},
        {"name": "shop", "type": "long", "aliases": ["card"]},
        AT,
        {"name": "price", "type": "double", "aliases": ["sum", "amount"]},
    ),
    fields_of("Paid", {"name": "card", "type": "long"}, {"name": "shop", "type": "long"}, AT),
    fields_of("Paid", {"name": "card", "type": "long"}, AT, {"name": "amount", "type": "long"}),
]


def payment(card: int) -> dict[str, Any]:
    now = {"card": card, "card_id": card, "shop": 2, "at": 10**15, "id": f"p{card}"}
    return now | {"amount": 2.5, "price": 2.5, "tags": {"a": None, "b": "x"}}


def test_each_message_is_read_by_its_own_schema_as_it_was_when_the_producer_wrote_it(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = [registry.add(schema) for schema in PAYMENTS]
    messages = [
        confluent(number, value(schema, payment(10 * turn + place) | ({"amount": 3} if place == 5 else {})))
        for turn in range(2)
        for place, (number, schema) in enumerate(zip(numbers, PAYMENTS, strict=True))
    ]
    batch = read(registry, *messages, topic=PAID)
    assert batch.events.select(["src", "dst", "weight", "event_id"]).to_pylist() == [
        {"src": 10 * turn + place, "dst": 2, "weight": weight, "event_id": name and name.format(10 * turn + place)}
        for turn in range(2)
        for place, (weight, name) in enumerate([(1.0, None), (2.5, "p{}"), (2.5, "p{}"), (2.5, "p{}"), (1.0, None)])
    ]  # fmt: skip
    assert batch.rejects["sentence"].to_pylist() == ["column shop is missing; found card, at, amount"] * 2
    lacking = [record.getMessage() for record in caplog.records if "have no" in record.getMessage()]
    assert lacking == [
        f"topic edges: some messages have no {field} by their schema. It is null in them"
        for field in ("event_id (id)", "weight (amount)")
    ]


def test_of_listed_features_a_missing_one_is_named_and_all_may_be_missing(registry: Registry) -> None:
    one = record("Edge", src="long", dst="long", t="long", a="float")
    topic = {"fields": {"src": "src", "dst": "dst", "t": "t", "features": ["a", "b"]}}
    messages = [edge(registry.add(EDGE), 1), edge(registry.add(one), 2, schema=one, a=0.5)]
    batch = read(registry, *messages, topic=topic, features={"edge": 2})
    assert batch.events.select(["src", "features"]).to_pylist() == [{"src": 1, "features": None}]
    assert batch.rejects["sentence"].to_pylist() == ["column b is missing; found src, dst, t, a"]


ODD = record(
    "Odd",
    src="long",
    dst=["null", "long"],
    t="long",
    op={"type": "enum", "name": "Op", "symbols": ["insert", "delete"]},
    event_id="string",
    features={"type": "array", "items": "float"},
    x={"type": "array", "items": {"type": "map", "values": "boolean"}},
)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x02", "field dst, byte 6: the message ends inside of it"),
        (b"\xff" * 9 + b"\x02", "field src, byte 5: a number has more than 64 bits"),
        (b"\x02\x04", "field dst, byte 6: its union has no such branch"),
        (b"\x02\x01", "field dst, byte 6: its union has no such branch"),
        (b"\x02\x00\x02\x04", "field op, byte 8: its enum has no such symbol"),
        (b"\x02\x00\x02\x00\x01", "field event_id, byte 9: its length is negative"),
        (b"\x02\x00\x02\x00\x04ab\xff", "field features, byte 12: the message ends inside of it"),
        (b"\x02\x00\x02\x00\x04a\xff", "field event_id, byte 9: its text is not UTF-8"),
        (
            b"\x02\x00\x02\x00\x02a" + b"\xff" * 9 + b"\x01\x00",
            "field features, byte 11: its number of items has more than 63 bits",
        ),
        (b"\x02\x00\x02\x00\x02a\x00\x02\x02\x03", "field x, byte 13: its length is negative"),
        (b"\x02\x00\x02\x00\x02a\x00\x02\x02\x02b\x01", "field x, byte 17: the message ends inside of it"),
        (b"\x02\x00\x02\x00\x02a\x00\x01\x01", "field x, byte 12: the message ends inside of it"),
    ],
)
def test_what_is_wrong_with_bytes_is_named_with_its_place(
    registry: Registry, content: bytes, sentence: str
) -> None:
    (reject,) = read(registry, confluent(registry.add(ODD), content)).rejects.to_pylist()
    assert reject["sentence"] == f"is no value of its Avro schema: {sentence}"


def test_an_array_may_have_more_items_than_its_poll_was_thought_to_have(registry: Registry) -> None:
    schema = record("Edge", src="long", dst="long", t="long", features={"type": "array", "items": "long"})
    number = registry.add(schema)
    rows = [[n % 50 - 25 for n in range(size)] for size in (3_000, 0, 2_999)]
    raw = [edge(number, place, schema=schema, features=row) for place, row in enumerate(rows)]
    made = decoder(topic={"format": "avro"}, registry={"url": registry.url}, features={"edge": 3_000})
    batch = made.decode(poll([raw[0], raw[1], raw[0][:-1], raw[2], raw[0]]))
    assert batch.events["src"].to_pylist() == [0, 0]
    assert batch.events["features"].to_pylist() == [rows[0]] * 2
    assert [reject["offset"] for reject in batch.rejects.to_pylist()] == [102, 104, 106]


def test_a_poll_of_many_bytes_is_read_in_parts(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "BYTES_AT_ONCE", 40)
    number = registry.add(EDGE)
    messages = [edge(number, place) + b"\0" * (place % 3 == 2) for place in range(20)]
    batch = read(registry, *messages)
    assert batch.events["src"].to_pylist() == [place for place in range(20) if place % 3 < 2]
    assert batch.rejects["offset"].to_pylist() == [100 + 2 * place for place in range(2, 20, 3)]


def test_the_kernel_is_compiled_once_for_all_schemas_and_polls(registry: Registry) -> None:
    read(registry, edge(registry.add(EDGE), 1), b"")
    read(registry, b"")
    read(registry, confluent(registry.add(ODD), b"\2"))
    assert len(avro_kernel.read_values.signatures) <= 1, "none if it is not compiled at all"
