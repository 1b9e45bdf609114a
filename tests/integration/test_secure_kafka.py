"""TLS, SASL and client certificates against a real broker; what is refused is said at once, and passwords nowhere."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from certificates import Authority
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from log_lines import error_of, served_at
from running_job import Running, reached, read_of
from secure_broker import KEY_PASSWORD, PASSWORD, USER, SecureBroker, set_password
from streaming import (
    COMMAND,
    T0,
    command,
    configuration,
    edge,
    fresh_topic,
    interactions,
    log_table,
    read_topic,
    run_job,
    send,
    settings,
    started,
    written,
)
from structlog.testing import capture_logs
from tls_proxy import TlsProxy
from typer.testing import CliRunner

from freshet_graph.schemas.config import Kafka, StreamConfig
from freshet_graph.stream import background
from freshet_graph.stream.cli import app
from freshet_graph.stream.job import loop
from freshet_graph.stream.kafka import dead_letters, greeting, group_offsets, reader
from freshet_graph.stream.kafka.greeting import greet
from freshet_graph.stream.kafka.tls import secret
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

SECRETS = (PASSWORD, KEY_PASSWORD)


def configured(store: Path, topic: str, keys: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A configuration whose section ``kafka`` has further keys."""
    bootstrap = keys["bootstrap"]
    return configuration(store, bootstrap, topic, kafka=keys, **more)


def group_offset(bootstrap: str, group: str, topic: str) -> int | None:
    """What the group has committed for partition 0."""
    consumer = KafkaConsumer(**settings(bootstrap), group_id=group, enable_auto_commit=False)
    try:
        return consumer.committed(TopicPartition(topic, 0))
    finally:
        consumer.close(autocommit=False)


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "client certificate"])
def test_reading_dead_letters_and_group_offsets_work_over_tls_with_each_login(
    secure: SecureBroker,
    tmp_path: Path,
    way: str,
) -> None:
    plain = secure.addresses["PLAIN"]
    topic, dead = fresh_topic(plain), fresh_topic(plain, stem="dead")
    send(plain, topic, [edge(1, 2, T0), b"{", edge(2, 3, T0 + 1)])
    if way == "client certificate":
        own = {"ssl_certfile": str(secure.client.certificate), "ssl_keyfile": str(secure.client.key)}
        keys = secure.tls("MUTUAL", **own, ssl_password=KEY_PASSWORD)
    else:
        keys = secure.login(way)
    ran, _ = run_job(
        configured(tmp_path / "store", topic, keys | {"dead_letters": dead, "group": f"g-{topic}"})
    )
    assert (ran.events, ran.refused) == (2, 1)
    assert [json.loads(value or b"")["offset"] for _, value in read_topic(plain, dead)] == [1]
    assert group_offset(plain, f"g-{topic}", topic) == 3


def test_replay_takes_the_login_from_a_streams_configuration_and_the_password_from_a_file(
    secure: SecureBroker,
    tmp_path: Path,
) -> None:
    topic = fresh_topic(secure.addresses["PLAIN"])
    table = interactions(tmp_path / "e.parquet", events=500)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    keys = secure.login("SCRAM-SHA-512", sasl_password_file=str(tmp_path / "password"))
    del keys["sasl_password"]
    content = configured(tmp_path / "store", topic, keys)
    done = command(
        "replay", tmp_path / "e.parquet", "--config", written(tmp_path, content), "--topic", topic, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sent"] == 500
    assert run_job(content)[0].events == 500
    assert log_table(tmp_path / "store").num_rows == len(table)


REFUSALS = {
    "wrong password, PLAIN": r"refused the login of freshet. Check kafka\.sasl_username and kafka\.sasl_password",
    "wrong password, SCRAM": r"refused the login of freshet. Check kafka\.sasl_username and kafka\.sasl_password",
    "untrusted authority": r"certificate of \S+ is not trusted .*Give the authority that signed it in kafka\.ssl_cafile",
    "expired certificate": r"certificate of \S+ has expired or isn't valid yet. Renew it",
    "certificate of another host": r"certificate of \S+ is for another host .*Name the brokers in kafka\.bootstrap",
    "no client certificate": r"refuses clients without a certificate\. Give one that it trusts in kafka",
    "plain client on a TLS port": r"speaks TLS\. Set kafka\.security_protocol to SSL",
    "TLS client on a plain port": r"closed the connection when TLS began. Check kafka\.security_protocol",
    "no login where one is wanted": r"requires a login\. Set kafka\.security_protocol to SASL_SSL",
    "a login where none is taken": r"accepts no login\. Set kafka\.security_protocol to SSL",
    "a mechanism it doesn't take": r"doesn't accept kafka\.sasl_mechanism PLAIN\. It accepts SCRAM-SHA-256",
}


def refused_keys(secure: SecureBroker, case: str) -> dict[str, Any]:
    match case:
        case "wrong password, PLAIN":
            return secure.login("PLAIN", sasl_password="not it")
        case "wrong password, SCRAM":
            return secure.login("SCRAM-SHA-512", sasl_password="not it")
        case "untrusted authority":
            return secure.tls("TLS", ssl_cafile=str(secure.stranger_ca))
        case "expired certificate":
            return secure.tls("EXPIRED")
        case "certificate of another host":
            return secure.tls("OTHERHOST")
        case "no client certificate":
            return secure.tls("MUTUAL")
        case "plain client on a TLS port":
            return {"bootstrap": secure.addresses["LOGIN"]}
        case "TLS client on a plain port":
            return secure.tls("PLAIN")
        case "no login where one is wanted":
            return secure.tls("LOGIN")
        case "a login where none is taken":
            return secure.login("PLAIN", bootstrap=secure.addresses["TLS"])
        case _:
            login = secure.login(
                "PLAIN", bootstrap=secure.addresses["OPENLOGIN"], security_protocol="SASL_PLAINTEXT"
            )
            del login["ssl_cafile"]
            return login


Right = tuple[ResourceType, str, ACLOperation]


@pytest.fixture
def grant(secure: SecureBroker) -> Iterator[Callable[[list[Right]], None]]:
    """Gives the user exactly these rights, and none on the cluster; at the end everybody may do everything again."""
    admin = KafkaAdminClient(**settings(secure.addresses["PLAIN"]))
    given: list[ACL] = []

    def change(rights: list[Right]) -> None:
        wanted = [(f"User:{USER}", *right) for right in rights]
        wanted.append(("User:nobody", ResourceType.CLUSTER, "kafka-cluster", ACLOperation.DESCRIBE))
        acls = [
            ACL(who, "*", do, ACLPermissionType.ALLOW, ResourcePattern(kind, name))
            for who, kind, name, do in wanted
        ]
        remove()
        given[:] = acls
        admin.create_acls(acls)

    def remove() -> None:
        if given:
            admin.delete_acls(
                [
                    ACLFilter(a.principal, "*", a.operation, a.permission_type, a.resource_pattern)
                    for a in given
                ]
            )

    yield change
    remove()
    admin.close()


def test_exactly_the_documented_rights_are_enough_and_a_missing_one_is_named(
    secure: SecureBroker,
    tmp_path: Path,
    grant: Callable[[list[Right]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = secure.addresses["PLAIN"]
    topic, dead = fresh_topic(plain), fresh_topic(plain, stem="dead")
    group = f"g-{topic}"
    keys = secure.login("PLAIN", dead_letters=dead, group=group)
    rights = [
        (ResourceType.TOPIC, topic, ACLOperation.DESCRIBE),
        (ResourceType.TOPIC, topic, ACLOperation.READ),
        (ResourceType.TOPIC, dead, ACLOperation.WRITE),
        (ResourceType.GROUP, group, ACLOperation.READ),
    ]
    grant(rights)
    send(plain, topic, [edge(1, 2, T0), b"{", edge(2, 3, T0 + 1)])
    path = written(tmp_path, configured(tmp_path / "store", topic, keys))
    done = command("run", "--config", path, "--until-idle", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(value or b"")["offset"] for _, value in read_topic(plain, dead)] == [1]
    assert group_offset(plain, group, topic) == 3

    monkeypatch.setattr("freshet_graph.stream.kafka.topics.METADATA_WAIT_S", 0.5)
    other = (ResourceType.TOPIC, topic, ACLOperation.ALTER_CONFIGS)  # one that implies none of the others
    for given, missing in (
        ([other, *rights[2:]], f"no right Describe on topic {topic}"),
        ([rights[0], *rights[2:]], f"no right Read on topic {topic}"),
        (
            [*rights[:2], (*rights[2][:2], ACLOperation.DESCRIBE), rights[3]],
            f"no right Write on topic {dead}",
        ),
    ):
        grant(given)
        send(plain, topic, [edge(1, 2, T0)])
        with pytest.raises(Failure, match=missing):
            run_job(configured(tmp_path / "store", topic, keys))
    grant([*rights[:3], (*rights[3][:2], ACLOperation.DESCRIBE)])
    with capture_logs() as logs:
        run_job(configured(tmp_path / "store", topic, keys))
    assert any("no right Read on the group" in line.get("error", "") for line in logs)


@pytest.mark.parametrize("case", REFUSALS)
def test_what_brokers_refuse_is_one_sentence_that_names_the_key(secure: SecureBroker, case: str) -> None:
    kafka = Kafka.model_validate({"topics": [{"name": "any"}], **refused_keys(secure, case)})
    with pytest.raises(Failure, match=f"connecting: .*{REFUSALS[case]}") as told:
        greet(kafka, "connecting")
    assert "not it" not in str(told.value)


def test_a_refused_command_ends_with_that_sentence_and_not_with_a_timeout(
    secure: SecureBroker,
    tmp_path: Path,
) -> None:
    case = "wrong password, SCRAM"
    content = configured(tmp_path / "store", "any", refused_keys(secure, case))
    done = command("run", "--config", written(tmp_path, content))
    assert done.returncode == 1
    assert re.search(REFUSALS[case], error_of(done.stderr)), done.stderr


def test_a_broker_among_others_that_are_down_is_enough(secure: SecureBroker) -> None:
    keys = secure.login("SCRAM-SHA-256", bootstrap=f"127.0.0.1:9,{secure.addresses['LOGIN']}")
    greet(Kafka.model_validate({"topics": [{"name": "any"}], **keys}), "connecting")
    keys["sasl_password"] = "another"
    with pytest.raises(Failure, match=r"connecting: .*password"):  # it is asked, whoever was silent before it
        greet(Kafka.model_validate({"topics": [{"name": "any"}], **keys}), "connecting")


def test_no_output_log_metric_error_or_process_list_holds_a_password(
    secure: SecureBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each password stands in the file in one run and in the environment in another; every word said is kept."""
    plain = secure.addresses["PLAIN"]
    topic, dead = fresh_topic(plain), fresh_topic(plain, stem="dead")
    send(plain, topic, [edge(1, 2, T0), b"{", edge(2, 3, T0 + 1)])
    own = {"ssl_certfile": str(secure.client.certificate), "ssl_keyfile": str(secure.client.key)}
    keys = secure.login("SCRAM-SHA-512", dead_letters=dead, **own, ssl_password=KEY_PASSWORD)
    content = configured(tmp_path / "store", topic, keys)
    said: list[str] = []

    def say(*arguments: str | Path, ends: int) -> None:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        said.extend([done.stdout, done.stderr, repr(done.exception)])
        assert done.exit_code == ends, done.stderr

    in_file = written(tmp_path, content)
    say("config", "--config", in_file, ends=0)
    say("config", "--config", in_file, "--json", ends=0)
    job = started(
        "run", "--config", in_file, "--debug", log=tmp_path / "job.log", cold=True
    )  # its own list of words
    try:
        wait_for_offset(plain, "freshet-test", topic, 3)
        address = _address(tmp_path / "job.log")
        said += [answered(address.replace("/metrics", path)) for path in ("/metrics", "/healthz", "/readyz")]
        said.append(" ".join(psutil.Process(job.pid).cmdline()))
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=30) == 0
    finally:
        job.kill()
        job.wait()
    said.append((tmp_path / "job.log").read_text())

    wrong = {
        "unknown key": content | {"kafka": keys | {"sasl_pasword": PASSWORD, "topics": [{"name": topic}]}},
        "wrong type": content | {"kafka": keys | {"sasl_password": [PASSWORD], "topics": [{"name": topic}]}},
        "section is a list": content | {"kafka": [keys]},
        "section is a text": content | {"kafka": f"sasl_password={PASSWORD}"},
        "missing key": content | {"kafka": keys},
        "mechanism": content | {"kafka": keys | {"sasl_mechanism": "GSSAPI", "topics": [{"name": topic}]}},
        "rule of the section": content
        | {"kafka": keys | {"sasl_password_file": "/x", "topics": [{"name": topic}]}},
    }
    for file in wrong.values():
        say("run", "--config", written(tmp_path, file), "--debug", ends=1)
    (tmp_path / "broken.yaml").write_text(
        f'kafka:\n  sasl_password: "{PASSWORD}\n  ssl_password: {KEY_PASSWORD}: x\n'
    )
    say("run", "--config", tmp_path / "broken.yaml", "--debug", ends=1)
    (tmp_path / "twice.yaml").write_text(
        f"kafka:\n  sasl_password: {PASSWORD}\n  sasl_password: {PASSWORD}\n"
    )
    say("run", "--config", tmp_path / "twice.yaml", "--debug", ends=1)
    elsewhere = content | {"kafka": content["kafka"] | {"bootstrap": secure.addresses["TLS"]}}
    say("run", "--config", written(tmp_path, elsewhere), "--debug", ends=1)
    swapped = content["kafka"] | {"sasl_password": KEY_PASSWORD, "ssl_password": PASSWORD}
    say("run", "--config", written(tmp_path, content | {"kafka": swapped}), "--debug", ends=1)
    no_key = {
        key: value for key, value in swapped.items() if not key.startswith("ssl_") or key == "ssl_cafile"
    }
    say("run", "--config", written(tmp_path, content | {"kafka": no_key}), "--debug", ends=1)

    for canary in SECRETS:
        assert not [text for text in said if canary in text]
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            assert not any(canary.encode() in path.read_bytes() for canary in SECRETS), path
    for _, value in read_topic(plain, dead):
        assert PASSWORD.encode() not in (value or b"")
    assert LogReader(tmp_path / "store").last is not None
    assert USER in "".join(said)  # the login that was refused is named


ADVERTISED = {
    "a name that does not resolve": (
        "UNKNOWN",
        r"nowhere\.invalid:9092 \((the name nowhere\.invalid|its name) does not",
    ),
    "a closed port": ("PROXIED", r"127\.0\.0\.1:\d+ \(connection refused\)"),
    "a socket that never answers": (
        "PROXIED",
        r"127\.0\.0\.1:\d+ \(it accepts the connection and does not answer\)",
    ),
}


@pytest.mark.parametrize("case", ADVERTISED)
def test_an_advertised_address_that_fails_is_named_with_the_broker_that_gave_it(
    secure: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(greeting, "PATIENCE_S", 1.0)
    for name in ("configure_logs", "calm_collector"):  # which are the process's
        monkeypatch.setattr(f"freshet_graph.stream.commands.run.{name}", lambda **_: None)
    listener, told = ADVERTISED[case]
    address = secure.addresses[listener]
    path = written(tmp_path, configured(tmp_path / "store", "edges", {"bootstrap": address}))
    with socket.socket() as silent:
        if "never" in case:
            host, _, port = secure.proxy.rpartition(":")
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            silent.bind((host, int(port)))
            silent.listen(16)  # the kernel takes connections that nobody ever looks at
        done = CliRunner().invoke(app, ["run", "--config", str(path)])
    assert done.exit_code == 1, done.output
    found = re.search(
        rf"{address} answers, but advertises {told}.*\. Correct advertised\.listeners", error_of(done.stderr)
    )
    assert found, done.stderr


@pytest.mark.slow
def test_certificates_that_change_on_both_sides_are_read_again_in_the_outage(
    secure: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "ASK_S", 0.5)
    monkeypatch.setattr(reader, "RECONNECT_S", 1.0)
    monkeypatch.setattr(background, "RETRY_S", 0.5)
    monkeypatch.setattr(dead_letters, "FLUSH_S", 2.0)
    monkeypatch.setattr(group_offsets, "COMMIT_TIMEOUT_MS", 2_000)
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "client.pem", "client.key"))

    def give_out(authority: Authority) -> None:
        client = authority.issue("client", host=None)
        for file, source in ((ca, authority.file), (certificate, client.certificate), (key, client.key)):
            file.write_bytes(source.read_bytes())

    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    give_out(before)
    plain, store = secure.addresses["PLAIN"], tmp_path / "store"
    topic, dead = fresh_topic(plain), fresh_topic(plain, stem="dead")
    send(plain, topic, [edge(1, i, T0 + i) for i in range(5)])
    files = {"ssl_cafile": str(ca), "ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    keys = {
        "bootstrap": secure.proxy,
        "security_protocol": "SSL",
        "dead_letters": dead,
        "group": topic,
        **files,
    }
    proxy = TlsProxy(secure.proxy, secure.addresses["PROXIED"])
    proxy.serve(before.issue("proxy"), before.file)
    running = Running(StreamConfig(**configured(store, topic, keys)))
    try:
        reached(lambda: read_of(store) == {0: 5} and running.ready() == (200, "ready"))
        proxy.serve(after.issue("proxy"), after.file)
        reached(lambda: f"the certificate of {secure.proxy} is not trusted" in running.ready()[1])
        give_out(after)
        send(plain, topic, [edge(1, 5, T0 + 5), b"{"])
        reached(lambda: read_of(store) == {0: 7} and running.ready() == (200, "ready"))
        reached(lambda: group_offset(plain, topic, topic) == 7)
        reached(lambda: [json.loads(value or b"")["offset"] for _, value in read_topic(plain, dead)] == [6])
    finally:
        running.close()
        proxy.close()
    assert [ran.events for ran in running.ran] == [6]


def test_a_password_that_brokers_know_before_the_job_does_is_waited_for(
    secure: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOGIN_AGAIN_S", 0.5)
    plain, store, file = secure.addresses["PLAIN"], tmp_path / "store", tmp_path / "password"
    topic, user = fresh_topic(plain), f"rotating-{tmp_path.name}"
    keys = {
        "bootstrap": secure.addresses["OPENLOGIN"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": user,
        "sasl_password_file": str(file),
    }
    set_password(plain, user, "first")
    file.write_text("first")
    send(plain, topic, [edge(1, 0, T0)])
    running = Running(StreamConfig(**configured(store, topic, keys, cycle_s=1)))
    try:
        reached(lambda: read_of(store) == {0: 1} and running.ready() == (200, "ready"))
        set_password(plain, user, "second")
        refused = rf"refused the login of {user}\. Check kafka\.sasl_username and kafka\.sasl_password"
        reached(lambda: re.search(refused, running.ready()[1]))  # by the next cycle
        send(plain, topic, [edge(1, 1, T0 + 1)])
        file.write_text("second")
        reached(lambda: read_of(store) == {0: 2} and running.ready() == (200, "ready"))
    finally:
        running.close()
    assert [ran.events for ran in running.ran] == [2]


def test_a_password_in_the_environment_is_used_and_shown_nowhere(
    secure: SecureBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = fresh_topic(secure.addresses["PLAIN"])
    send(secure.addresses["PLAIN"], topic, [edge(1, 2, T0)])
    keys = secure.login("PLAIN")
    del keys["sasl_password"]
    path = written(tmp_path, configured(tmp_path / "store", topic, keys))

    monkeypatch.setenv("FRESHET_STREAM_KAFKA__SASL_PASSWORD", PASSWORD)
    good = subprocess.run(
        [*COMMAND, "run", "--until-idle", "0.5", "--config", str(path), "--debug"],
        capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert good.returncode == 0, good.stderr
    said = good.stdout + good.stderr

    def checked(expected: str) -> str:
        done = CliRunner().invoke(app, ["config", "--config", str(path), "--debug"])
        assert expected in done.output
        return done.output + repr(done.exception)

    said += checked("sasl_password: '**********'")
    monkeypatch.setenv("FRESHET_STREAM_KAFKA__MAX_POLL_RECORDS", "many")
    said += checked(
        "error: environment variable FRESHET_STREAM_KAFKA__MAX_POLL_RECORDS: kafka.max_poll_records"
    )
    monkeypatch.setenv("FRESHET_STREAM_KAFKA", f'{{"sasl_password": "{PASSWORD}"')
    said += checked("error: environment variable FRESHET_STREAM_KAFKA: must be JSON")
    assert PASSWORD not in said


def test_a_file_that_cannot_be_used_is_named_with_its_key(secure: SecureBroker, tmp_path: Path) -> None:
    def told(**keys: Any) -> str:
        kafka = Kafka.model_validate({"topics": [{"name": "any"}], **keys})
        with pytest.raises(Failure) as failure:
            greet(kafka, "connecting")
        return str(failure.value)

    (tmp_path / "text").write_text("no certificate")
    (tmp_path / "empty").write_text("\n")
    missing = str(tmp_path / "missing")
    own = {"ssl_certfile": str(secure.client.certificate), "ssl_keyfile": str(secure.client.key)}
    assert told(**secure.tls("TLS", ssl_cafile=missing)).startswith(
        f"kafka.ssl_cafile: {missing} cannot be read"
    )
    assert "holds no certificate" in told(**secure.tls("TLS", ssl_cafile=str(tmp_path / "text")))
    not_its = told(**secure.tls("MUTUAL", **own, ssl_password="hunter2"))
    assert "kafka.ssl_password is not the key's" in not_its
    assert "hunter2" not in not_its
    assert "kafka.ssl_password is not the key's" in told(
        **secure.tls("MUTUAL", **own)
    )  # and nothing is asked for
    assert told(**secure.tls("MUTUAL", ssl_certfile=missing)).startswith("kafka.ssl_certfile: ")
    login = secure.login("PLAIN", sasl_password_file=missing)
    del login["sasl_password"]
    assert "kafka.sasl_password_file: " in told(**login)
    assert "is empty" in told(**login | {"sasl_password_file": str(tmp_path / "empty")})


def test_a_password_file_is_read_anew_and_loses_only_its_line_break(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" with spaces \r\n")
    assert secret("sasl_password", None, str(file)) == " with spaces "
    file.write_text("changed")
    assert secret("sasl_password", None, str(file)) == "changed"


def wait_for_offset(bootstrap: str, group: str, topic: str, offset: int) -> None:
    """Wait until a job has read and committed so far."""
    deadline = time.monotonic() + 60
    while group_offset(bootstrap, group, topic) != offset:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def answered(address: str) -> str:
    """What an endpoint says, whatever its status."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def _address(log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if log.exists() and (url := served_at(log.read_text())):
            return f"{url}/metrics"
        time.sleep(0.1)
    raise AssertionError(log.read_text())
