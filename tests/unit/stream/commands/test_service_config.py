"""Configuration: errors name file and key, the example is valid, the environment overrides, secrets stay hidden."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from freshet_graph.schemas.config import Service, StreamConfig
from freshet_graph.schemas.section import keys_of
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.cli import app
from freshet_graph.stream.commands.config import EXAMPLE, require_parts
from freshet_graph.stream.commands.options import parameters
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.example import example
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.cli import app as trainer_app
from freshet_graph.trainer.validation import require_trainable

SMALLEST = """
graph: demo
store: ./store
kafka:
  bootstrap: 127.0.0.1:9092
  topics: [{name: edges, format: json}]
  dead_letters: edges.dead
snapshots: {interval_s: 86400, lateness_s: 0, late: next-snapshot}
time_bounds: [0, null]
ids: int
lanes:
  - {name: distdy, algorithm: distdy, parts: 2}
  - {name: sep, algorithm: sep, parts: 2}
metrics: {port: 0}
"""
SMALLEST_TRAINER = """
store: ./store
lane: distdy
model: sage-linear
strategy: vertex
window: 4
checkpoint: ./checkpoints
"""


@pytest.fixture(autouse=True)
def _environment(clean_environment: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's shell."""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "service.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_smallest_configurations_of_the_contract_load(tmp_path: Path) -> None:
    config = load_config(StreamConfig, write(tmp_path, SMALLEST))
    assert [lane.name for lane in config.lanes] == ["distdy", "sep"]
    assert config.time_bounds == (0.0, None)
    assert config.snapshots.commit_every_s == 10.0
    assert config.metrics.host == "127.0.0.1"
    require_parts(config)
    trainer = load_config(TrainerConfig, write(tmp_path, SMALLEST_TRAINER))
    assert trainer.metrics.port == 9109
    require_trainable(trainer, 2)


def test_keys_that_are_left_out_are_the_recommended_ones(tmp_path: Path) -> None:
    """Those of the examples, too: an event model on one rank, and snapshots of minutes."""
    least = "graph: demo\nstore: ./store\nkafka: {bootstrap: '127.0.0.1:9092', topics: [{name: edges}]}"
    stream = load_config(StreamConfig, write(tmp_path, least))
    shown = load_config(StreamConfig, write(tmp_path, example(StreamConfig, EXAMPLE, title="An example")))
    assert stream.snapshots == shown.snapshots
    assert 60 <= stream.snapshots.interval_s <= 900
    trainer = TrainerConfig()
    assert (trainer.model, trainer.strategy) == ("tgn-history", "sequential")
    assert trainer.lane in [lane.algorithm for lane in shown.lanes]
    require_trainable(trainer)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("graph: demo\n=graph: ../demo\n", ["graph"]),
        ("ids: int=ids: uuid", ["ids", "uuid"]),
        ("interval_s: 86400=interval_s: 0", ["snapshots.interval_s", "at least", "0"]),
        ("interval_s: 86400=interval_s: day", ["snapshots.interval_s", "number", "day"]),
        ("interval_s: 86400=interval: 86400", ["unknown key snapshots.interval", "interval_s"]),
        ("bootstrap: 127.0.0.1:9092=brokers: 127.0.0.1:9092", ["unknown key kafka.brokers", "kafka.bootstrap is missing"]),
        ("{name: sep,={name: distdy,", ["distinct names", "distdy"]),
        ("name: sep, algorithm: sep, parts: 2=name: sep, algorithm: sep, parts: 0", ["lanes[sep].parts", "0"]),
        ("[0, null]=[10, 5]", ["time_bounds", "min < max", "10"]),
        ("  dead=  security_protocol: SASL_SSL\n  sasl_mechanism: PLAIN\n  dead", ["SASL_SSL needs sasl_username", "_file"]),
        ("  dead=  sasl_mechanism: PLAIN\n  dead", ["kafka", "PLAINTEXT has no login", "SASL_PLAINTEXT"]),
        ("  dead=  ssl_cafile: ca.pem\n  dead", ["kafka", "ssl_cafile given", "PLAINTEXT has no TLS"]),
        ("  dead=  ssl_keyfile: k.pem\n  security_protocol: SSL\n  dead", ["kafka", "ssl_keyfile is given without ssl_certfile"]),
        ("  dead=  sasl_password: p\n  sasl_password_file: f\n  dead", ["sasl_password or sasl_password_file, not"]),
        ("format: json}=time_unit: nanos}", ["kafka.topics[edges].time_unit: must be", "found 'nanos'. Did you mean ns?"]),
        ("format: json}=time_unit: micros}", ["Did you mean us?"]),
        ("format: json}=key_format: long}", ["found 'long'. Did you mean integer?"]),
        ("format: json}=ops: {x: remove}}", ["found 'remove'. Did you mean delete?"]),
        ("format: json}=fields: {src: $Key, dst: b, t: t}}", ["Did you mean $key? Write \\$Key for a key of the message"]),
        ("late: next-snapshot=late: next", ["found 'next'. Did you mean next-snapshot?"]),
        ("late: next-snapshot=late: next-snapshots", ["found 'next-snapshots'. Did you mean next-snapshot?"]),
        ("port: 0=port: 70000", ["metrics.port", "65535", "70000"]),
        ("edges.dead=edges", ["kafka", "dead_letters", "topic that is not read", "'edges'"]),
        ("store: ./store=store: gs://bucket/x", ["store", "s3://bucket/prefix", "gs://"]),
        ("store: ./store=store: ''", ["store", "at least 1 character"]),
        ("name: edges,=name: bad topic!,", ["kafka.topics[bad topic!].name", "bad topic!"]),
        ("interval_s: 86400=interval_s: .inf", ["snapshots.interval_s", "finite"]),
        ("interval_s: 86400=interval_s: 1.0e+13", ["snapshots.interval_s", "100000000000"]),
        ("[0, null]=[.nan, null]", ["time_bounds", "finite"]),
        ("bootstrap: 127.0.0.1:9092=bootstrap: [h:1, h:2]", ["kafka.bootstrap: must be text (host:port of the brokers, comma"]),
        ("127.0.0.1:9092=h:1, Kafka", ["kafka.bootstrap: Kafka has no port, such as Kafka:9092"]),
        ("127.0.0.1:9092=h:1, [::1]", ["kafka.bootstrap: [::1] has no port, such as [::1]:9092"]),
        ("127.0.0.1:9092=PLAINTEXT://h:1", ["kafka.bootstrap: 'PLAINTEXT://h:1' is not host:port"]),
        ("interval_s: 86400=interval_s: 5m", ["snapshots.interval_s: must be a number of seconds, found '5m'"]),
        ("  dead=  schema_registry: http://r\n  dead", ["must be a section of keys and values", "{url: 'http://registry:8081'}"]),
        ("format: json}=fields: {src: a, dst: b, t: t, features: 7}}", ["[edges].fields.features: must be text or a list"]),
        ("format: json}=id_prefix: {src: 'c:'}}", [".yaml: kafka.topics: id_prefix of topic edges makes ids text"]),
        ("[0, null]=[0, 1.0e+20]", ["time_bounds", "within"]),
    ],
)  # fmt: skip
def test_an_error_names_the_file_the_key_and_what_was_expected(
    tmp_path: Path, change: str, expected: list[str]
) -> None:
    before, _, after = change.partition("=")
    assert before in SMALLEST
    path = write(tmp_path, SMALLEST.replace(before, after))
    with pytest.raises(Failure) as failure:
        load_config(StreamConfig, path)
    for text in [str(path), *expected]:
        assert text in str(failure.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            "algorithm: sep=algorithm: metric",
            ".yaml: lanes[sep]: unknown partitioner 'metric'; expected one of",
        ),
        ("algorithm: sep=algorithm: metsi", "Did you mean metis?"),
        (
            "format: json=format: csv",
            ".yaml: kafka.topics[edges].format: unknown message format 'csv'; expected one of",
        ),
        (
            "algorithm: sep,=algorithm: sep, params: {hubs: 2},",
            ".yaml: lanes[sep]: params of sep: hubs: must be at most 1",
        ),
        ("algorithm: sep,=algorithm: sep, params: {hub: 2},", "Did you mean hubs?"),
    ],
)
def test_checking_a_file_names_a_lane_that_cannot_be_made(tmp_path: Path, change: str, expected: str) -> None:
    before, _, after = change.partition("=")
    path = write(tmp_path, SMALLEST.replace(before, after))
    shown = CliRunner().invoke(app, ["config", "--config", str(path)])
    assert shown.exit_code == 1
    assert expected in shown.stderr


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ("ids: int=idss: int", ": unknown key idss. Did you mean ids?"),
        ("lateness_s: 0=latenes: 0", ": unknown key snapshots.latenes. Did you mean lateness_s?"),
        ("name: sep, algorithm: sep=name: sep, algorithm: sep, para: {}", ": unknown key lanes[sep].para. Did you mean params?"),
        ("format: json}=fields: {src: a, dst: b, t: t, weigth: w}}", ".topics[edges].fields.weigth. Did you mean weight?"),
        ("ids: int=interval_s: 5", ": unknown key interval_s. Did you mean snapshots.interval_s?"),
        ("ids: int=colour: blue", ": unknown key colour"),
        ("ids: int=17: blue", ": unknown key 17"),
        ("interval_s: 86400=intervall_s: 3", ": unknown key snapshots.intervall_s. Did you mean interval_s?"),
        ("sep, algorithm: sep=sep, algorithms: sep",
         ": key lanes[sep].algorithm is missing; unknown key lanes[sep].algorithms (did you mean algorithm?)"),
    ],
)  # fmt: skip
def test_an_unknown_key_names_the_nearest_known_one(tmp_path: Path, change: str, end: str) -> None:
    before, _, after = change.partition("=")
    path = write(tmp_path, SMALLEST.replace(before, after))
    with pytest.raises(Failure) as failure:
        load_config(StreamConfig, path)
    assert str(failure.value).endswith(end)


EDGE, NODE = "src: a, dst: b, t: t", "node: a, t: t"


@pytest.mark.parametrize(
    ("fields", "features", "told"),
    [
        (f"{EDGE}, features: [x, y]", "", "lists 2 paths of features, but features.edge is 0. Set features.edge to 2"),
        (f"{EDGE}, features: [x, y]", "edge: 3, node: 2", "but features.edge is 3. Set features.edge to 2"),
        (f"{EDGE}, features: [x, y]", "edge: 2", None),
        (f"{NODE}, features: [x, y]", "edge: 2", "but features.node is 0. Set features.node to 2"),
        (f"{NODE}, features: [x, y]", "node: 2", None),
        (f"{EDGE}, node: n, features: [x, y]", "edge: 1, node: 3",
         "but features.edge is 1 and features.node is 3. Set features.edge or features.node to 2"),
        (f"{EDGE}, node: n, features: [x, y], offset: o, values: v", "edge: 2, node: 128", None),
        (f"{EDGE}, features: x", "", "names features, but features.edge is 0. Set features.edge to their number"),
        (f"{EDGE}, features: x", "edge: 7", None),
        (f"{EDGE}, node: n, features: x", "node: 7", None),
        (f"{NODE}, offset: o, values: v", "", "names values, but features.node is 0"),
        (EDGE, "", None),
    ],
)  # fmt: skip
def test_mapped_features_that_no_message_could_pass_are_refused_with_the_keys_to_set(
    tmp_path: Path, fields: str, features: str, told: str | None
) -> None:
    text = SMALLEST.replace("format: json}", f"fields: {{{fields}}}}}") + f"features: {{{features}}}\n"
    shown = CliRunner().invoke(app, ["config", "--config", str(write(tmp_path, text))])
    assert shown.exit_code == (0 if told is None else 1), shown.stderr
    if told is not None:
        assert "kafka.topics: fields of topic edges" in shown.stderr
        assert told in shown.stderr


def test_a_width_from_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SMALLEST.replace("format: json}", f"fields: {{{EDGE}, features: [x, y]}}}}")
    monkeypatch.setenv("FRESHET_STREAM_FEATURES__EDGE", "2")
    assert load_config(StreamConfig, write(tmp_path, text)).features.edge == 2


def test_all_wrong_keys_are_named_at_once(tmp_path: Path) -> None:
    text = SMALLEST.replace("ids: int", "ids: uuid").replace("port: 0", "port: -1")
    with pytest.raises(Failure, match=r"(?s)ids.*metrics\.port"):
        load_config(StreamConfig, write(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("graph: [demo", "is not usable YAML"),
        ("graph: a\ngraph: b\n", "key graph is given twice"),
        ("- demo\n", "must be a mapping of keys, found list"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    with pytest.raises(Failure, match=expected):
        load_config(StreamConfig, write(tmp_path, content))


@pytest.mark.parametrize("kind", [StreamConfig, TrainerConfig])
@pytest.mark.parametrize("tag", ["object/apply:os.mkdir", "object/new:os.mkdir", "name:os.mkdir", "tuple"])
def test_a_file_that_names_python_objects_is_refused_and_makes_none(
    tmp_path: Path, kind: type[Service], tag: str
) -> None:
    made = tmp_path / "made"
    path = write(tmp_path, f"graph: !!python/{tag} [{made}]\n")
    with pytest.raises(Failure, match=rf"could not determine a constructor for the tag .*{tag}.* in line 1"):
        load_config(kind, path)
    assert not made.exists()


def test_a_parameter_that_names_a_python_object_is_refused_and_makes_none(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(Failure, match="--param hubs takes a YAML value"):
        parameters([f"hubs=!!python/object/apply:os.mkdir [{made}]"])
    assert not made.exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"nowhere\.yaml cannot be read"):
        load_config(StreamConfig, tmp_path / "nowhere.yaml")


def test_the_environment_overrides_one_nested_key_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRESHET_STREAM_METRICS__HOST", "0.0.0.0")
    monkeypatch.setenv("FRESHET_STREAM_KAFKA__BOOTSTRAP", "kafka:19092")
    monkeypatch.setenv("FRESHET_STREAM_SNAPSHOTS__INTERVAL_S", "60")
    config = load_config(StreamConfig, write(tmp_path, SMALLEST))
    assert (config.metrics.host, config.metrics.port) == ("0.0.0.0", 0)
    assert (config.kafka.bootstrap, config.kafka.topics[0].name) == ("kafka:19092", "edges")
    assert config.snapshots.interval_s == 60


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        (StreamConfig, "STREAM_METRIC__PORT", "1", "unknown key metric.port. Did you mean metrics.port?"),
        (StreamConfig, "STREAM_KAFKA__BOOTSTRPA", "x", "unknown key kafka.bootstrpa. Did you mean kafka.bootstrap?"),
        (StreamConfig, "STREAM_KAFKA_BOOTSTRAP", "x", "unknown key kafka_bootstrap. Did you mean kafka.bootstrap?"),
        (StreamConfig, "STREAM_METRICS_PORT", "1", "unknown key metrics_port. Did you mean metrics.port?"),
        (StreamConfig, "STREAM_STORE__X", "1", "unknown key store.x. Did you mean store?"),
        (StreamConfig, "STREAM_QQQQ", "1", "unknown key qqqq"),
        (TrainerConfig, "TRAINER_MODL", "1", "unknown key modl. Did you mean model?"),
        (StreamConfig, "STREAM_SNAPSHOTS__INTERVAL_S", "abc",
         "snapshots.interval_s: must be a number of seconds, found 'abc'"),
        (StreamConfig, "STREAM_METRICS", '{"port": "x"}', "metrics.port: must be a whole number, found 'x'"),
        (StreamConfig, "STREAM_KAFKA__TOPICS", "edges", "must be JSON. Give a section key by key, or as JSON"),
        (TrainerConfig, "TRAINER_WINDOW", "0", "window: must be at least 1, found '0'"),
    ],
)  # fmt: skip
def test_a_variable_that_is_unknown_or_wrong_is_refused_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Service], name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"FRESHET_{name}", value)
    path = write(tmp_path, SMALLEST if kind is StreamConfig else SMALLEST_TRAINER)
    with pytest.raises(Failure) as refused:
        load_config(kind, path)
    assert str(refused.value) == f"environment variable FRESHET_{name}: {expected}"


def test_what_is_wrong_in_the_file_is_not_blamed_on_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRESHET_STREAM_METRICS", '{"host": "0.0.0.0"}')
    monkeypatch.setenv("FRESHET_STREAM_IDS", "uuid")
    path = write(tmp_path, SMALLEST.replace("port: 0", "port: none"))
    with pytest.raises(Failure) as refused:
        load_config(StreamConfig, path)
    of_the_file, of_the_variable = str(refused.value).split("; ")
    assert of_the_file.startswith(f"configuration {path}: metrics.port: must be")
    assert of_the_variable.startswith("environment variable FRESHET_STREAM_IDS: ids: must be")


def test_variables_that_set_keys_of_mappings_and_those_that_kubernetes_makes_of_a_service_are_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRESHET_TRAINER_MODEL_PARAMS__HIDDEN", "8")
    for name, value in {
        "SERVICE_HOST": "10.0.0.7", "SERVICE_PORT": "9108", "SERVICE_PORT_METRICS": "9108",
        "PORT": "tcp://10.0.0.7:9108", "PORT_9108_TCP": "tcp://10.0.0.7:9108", "PORT_9108_TCP_PROTO": "tcp",
        "PORT_9108_TCP_PORT": "9108", "PORT_9108_TCP_ADDR": "10.0.0.7", "METRICS_PORT": "tcp://10.0.0.8:9108",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"FRESHET_TRAINER_{name}", value)
    config = load_config(TrainerConfig, write(tmp_path, SMALLEST_TRAINER))
    assert config.model_params["hidden"] in (8, "8")


@pytest.mark.parametrize(("kind", "values"), [(StreamConfig, EXAMPLE), (TrainerConfig, {})])
def test_the_example_is_valid_and_shows_every_key(
    tmp_path: Path, kind: type[Service], values: dict[str, Any]
) -> None:
    text = example(kind, values, title="An example")
    load_config(kind, write(tmp_path, text))
    for name, field in (pair for section in _sections(kind) for pair in keys_of(section).items()):
        assert f"{name}:" in text
        assert field.description is None or field.description in text
    assert not re.search(r"One of \w+\.", text), "a list of one choice"


def test_every_key_that_the_example_comments_out_is_its_default(tmp_path: Path) -> None:
    text = example(StreamConfig, EXAMPLE, title="An example")
    as_shown = load_config(StreamConfig, write(tmp_path, text))
    lines = [line.replace("# ", "", 1) if _is_key(line) else line for line in text.splitlines()]
    assert load_config(StreamConfig, write(tmp_path, "\n".join(lines))) == as_shown


def _is_key(line: str) -> bool:
    text = line.strip()
    if not text.startswith("# "):
        return False
    key, colon, value = text[2:].partition(":")
    if not colon or not key.islower() or not key.replace("_", "").isalnum():
        return False
    known = {name for kind in _sections(StreamConfig) for name in kind.model_fields}
    return key in known and (not value or value.startswith(" "))


def _sections(kind: type) -> list[type]:
    from pydantic import BaseModel

    found = [kind]
    for field in kind.model_fields.values():  # type: ignore[attr-defined]
        for member in [field.annotation, *getattr(field.annotation, "__args__", ())]:
            if isinstance(member, type) and issubclass(member, BaseModel):
                found += _sections(member)
    return found


def test_a_password_is_in_no_output_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHET_STREAM_KAFKA__SASL_PASSWORD", "s3cret")
    good = write(tmp_path, SMALLEST)
    shown = CliRunner().invoke(app, ["config", "--config", str(good)])
    as_json = CliRunner().invoke(app, ["config", "--config", str(good), "--json"])
    assert shown.exit_code == as_json.exit_code == 0
    assert load_config(StreamConfig, good).kafka.sasl_password.get_secret_value() == "s3cret"  # type: ignore[union-attr]
    wrong = write(tmp_path, SMALLEST.replace("ids: int", "ids: uuid"))
    failed = CliRunner().invoke(app, ["config", "--config", str(wrong)])
    in_list = SMALLEST.replace("bootstrap:", "sasl_password: [s3cret]\n  bootstrap:")
    monkeypatch.delenv("FRESHET_STREAM_KAFKA__SASL_PASSWORD")
    mistyped = CliRunner().invoke(app, ["config", "--config", str(write(tmp_path, in_list))])
    assert failed.exit_code == mistyped.exit_code == 1
    assert "kafka.sasl_password" in mistyped.stderr
    for result in (shown, as_json, failed, mistyped):
        assert "s3cret" not in result.output
        assert "s3cret" not in repr(result.exception)


@pytest.mark.parametrize("key", ["sasl_password", "ssl_password"])
@pytest.mark.parametrize("wrong", ["8612345", "0.8612345", "[8612345]", "{8612345: 1}", "2026-08-07"])
def test_a_password_that_is_no_text_is_refused_and_not_quoted(tmp_path: Path, key: str, wrong: str) -> None:
    path = write(tmp_path, SMALLEST.replace("bootstrap:", f"{key}: {wrong}\n  bootstrap:"))
    with pytest.raises(Failure, match=rf"kafka\.{key}: must be text \("):
        load_config(StreamConfig, path)
    told = CliRunner().invoke(app, ["config", "--config", str(path), "--debug"])
    assert told.exit_code == 1
    for text in ("8612345", "2026-08-07", "2026, 8, 7"):
        assert text not in told.output
        assert text not in repr(told.exception)


@pytest.mark.parametrize("password", ["8612345", "null", "true", "[1, 2]", "{}", '"quoted"', ""])
def test_a_password_of_the_environment_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    monkeypatch.setenv("FRESHET_STREAM_KAFKA__SASL_PASSWORD", password)
    found = load_config(StreamConfig, write(tmp_path, SMALLEST)).kafka.sasl_password
    assert found is not None and found.get_secret_value() == password


def test_what_config_prints_loads_again(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["config", "--config", str(write(tmp_path, SMALLEST))]).stdout
    again = load_config(StreamConfig, write(tmp_path, printed))
    assert again == load_config(StreamConfig, write(tmp_path, SMALLEST))
    assert yaml.safe_load(printed)["kafka"]["sasl_password"] is None


def test_config_without_a_wish_says_which_there_are() -> None:
    result = CliRunner().invoke(app, ["config"])
    assert result.exit_code == 1
    assert "--example" in result.stderr


@pytest.mark.parametrize(("kind", "command"), [(StreamConfig, app), (TrainerConfig, trainer_app)])
def test_the_schema_describes_every_key_with_the_default_that_it_has(
    kind: type[Service], command: Any
) -> None:
    service = kind.__name__.removesuffix("Config").lower()
    example_text = CliRunner().invoke(command, ["config", "--example"]).stdout
    assert example_text.splitlines()[0] == f"# yaml-language-server: $schema={service}.schema.json"
    schema = json.loads(CliRunner().invoke(command, ["config", "--schema"]).stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for section in _sections(kind):
        of_section = schema if section is kind else schema["$defs"][section.__name__]
        assert of_section["additionalProperties"] is False
        required = {name for name, field in keys_of(section).items() if field.is_required()}
        assert set(of_section.get("required", ())) == required
        assert of_section["type"] == ("object" if required or section is kind else ["object", "null"])
        for name, field in keys_of(section).items():
            key = of_section["properties"][name]
            assert key["description"], name
            if not field.is_required():
                default = field.get_default(call_default_factory=True)
                shown = default.model_dump(mode="json") if isinstance(default, BaseModel) else default
                assert key["default"] == shown, name
