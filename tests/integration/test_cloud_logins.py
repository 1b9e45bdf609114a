"""Logins by OAUTHBEARER against a real broker: by client credentials, a file and a provider, renewed during a run."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed import install, look_again
from kafka_broker import free_addresses
from log_lines import error_of
from oauth_broker import CLIENT, SECRET, SESSION_MS, OAuthBroker, unsecured
from running_job import Running, events_of, reached
from streaming import (
    T0,
    command,
    configuration,
    edge,
    fresh_topic,
    interactions,
    read_topic,
    result,
    run_job,
    send,
    written,
)
from structlog.testing import capture_logs

from freshet_graph.schemas.config import Kafka, StreamConfig
from freshet_graph.stream.kafka import logins
from freshet_graph.stream.kafka.greeting import greet
from freshet_graph.stream.service.failure import Failure

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def fresh(oauth_broker: OAuthBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No token of another test, and a service that works."""
    monkeypatch.setattr(logins, "_sources", [])
    oauth_broker.service.reset()
    yield
    oauth_broker.service.reset()


def configured(store: Path, topic: str, keys: dict[str, Any], **more: Any) -> dict[str, Any]:
    return configuration(store, keys["bootstrap"], topic, kafka=keys, **more)


@pytest.mark.parametrize("way", ["client credentials", "token file"])
def test_every_command_that_speaks_to_brokers_logs_in_by_a_token(
    oauth_broker: OAuthBroker, tmp_path: Path, way: str
) -> None:
    plain, service = oauth_broker.addresses["PLAIN"], oauth_broker.service
    topic, dead = fresh_topic(plain), fresh_topic(plain, stem="dead")
    table = interactions(tmp_path / "e.parquet", events=300)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    if way == "token file":
        (tmp_path / "token").write_text(unsecured() + "\n")
        keys = oauth_broker.login("UNSECURED", token_file=str(tmp_path / "token"))
    else:
        keys = oauth_broker.login()
        keys["sasl_oauth"] = {
            "token_endpoint": f"{service.url}/token", "client_id": CLIENT, "client_secret_file": str(tmp_path / "secret"),
            "scope": "kafka read", "parameters": {"audience": "kafka"},
        }  # fmt: skip
    content = configured(tmp_path / "store", topic, keys | {"dead_letters": dead, "group": f"g-{topic}"})
    path = written(tmp_path, content)
    sent = result("replay", tmp_path / "e.parquet", "--config", path, "--topic", topic)
    assert sent["sent"] == len(table)
    send(plain, topic, [b'{"src": 1}'])
    assert result("try", "--topic", topic, "--config", path)["events"] > 0
    ran = result("run", "--config", path, "--until-idle", "1")
    assert (ran["events"], ran["refused"]) == (300, 1)
    assert [json.loads(value or b"")["offset"] for _, value in read_topic(plain, dead)] == [300]
    assert result("resend", "--config", path)["sent"] == 1
    if way == "client credentials":
        form = {"grant_type": "client_credentials", "scope": "kafka read", "audience": "kafka"}
        assert service.forms
        assert all(each == form for each in service.forms)
    shown = command("config", "--config", path)
    assert SECRET not in shown.stdout + shown.stderr


REFUSALS = {
    "endpoint that is away": r"token_endpoint http\S+ does not answer: .*refused.*\. Check that address and the network",
    "endpoint that says nothing": r"token_endpoint http\S+ (does not answer: .*timed out|gives no token within)",
    "wrong secret": r"refuses the client stream \(HTTP 401, invalid_client: unknown client or wrong secret\)\. "
    r"Check kafka\.sasl_oauth\.client_id, client_secret and scope",
    "endpoint in trouble": r"gives no token \(HTTP 503, temporarily_unavailable\)\. It is asked again",
    "file that is missing": r"kafka\.sasl_oauth\.token_file: \S+ cannot be read: No such file",
    "empty file": r"kafka\.sasl_oauth\.token_file: \S+ is empty or not text\. Write the token into it",
    "expired token": r"refused the token of kafka\.sasl_oauth\.token_file \S+, which expired at 20\S+\. Have it renewed",
    "another audience": r'refused the token of kafka\.sasl_oauth\.token_endpoint \S+ \(issuer "https://login\.example\.org", '
    r'audience "elsewhere", subject "freshet"\)\. Check what the brokers expect of tokens',
    "unknown key": r"refused the token of kafka\.sasl_oauth\.token_endpoint",
    "secret file that is missing": r"kafka\.sasl_oauth\.client_secret_file: \S+ cannot be read",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_wrong_is_one_sentence_with_its_remedy(
    oauth_broker: OAuthBroker, tmp_path: Path, case: str
) -> None:
    service, keys, file = oauth_broker.service, oauth_broker.login(), tmp_path / "token"
    match case:
        case "endpoint that is away":
            keys["sasl_oauth"]["token_endpoint"] = f"http://{free_addresses(['away'])['away']}/token"
        case "endpoint that says nothing":
            service.silent, keys["sasl_oauth"]["timeout_s"] = True, 0.5
        case "wrong secret":
            keys["sasl_oauth"]["client_secret"] = "not it"
        case "endpoint in trouble":
            service.status = 503
        case "another audience":
            service.claims = {"aud": "elsewhere"}
        case "unknown key":
            service.stranger = True
        case "secret file that is missing":
            del keys["sasl_oauth"]["client_secret"]
            keys["sasl_oauth"]["client_secret_file"] = str(file)
        case _:
            keys = oauth_broker.login("UNSECURED", token_file=str(file))
            if case != "file that is missing":
                file.write_text(unsecured(-5) if case == "expired token" else "\n")
    done = command("run", "--config", written(tmp_path, configured(tmp_path / "store", "any", keys)))
    assert done.returncode == 1
    said = error_of(done.stderr)
    assert re.search(f"connecting to Kafka: .*{REFUSALS[case]}", said), said
    assert not [secret for secret in (SECRET, "not it") if secret in done.stderr]


def test_the_provider_that_the_page_shows_gives_the_tokens_from_another_package(
    oauth_broker: OAuthBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    source += "\n\ndef read_from_the_vault(role):\n    import pathlib\n\n    return pathlib.Path(role).read_text()\n"
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    install(site, "their-tokens", source, {"vault": "their_tokens:Vault"}, group="freshet.tokens")

    def meet(**oauth: Any) -> None:
        keys = oauth_broker.login("UNSECURED", **oauth)
        greet(Kafka.model_validate({"topics": [{"name": "any"}], **keys}), "connecting")

    vault = tmp_path / "vault"
    with pytest.raises(Failure, match=r"connecting: kafka\.sasl_oauth\.provider vault: .*No such file"):
        meet(provider="vault", params={"role": str(vault)})
    monkeypatch.setattr(logins, "_sources", [])
    vault.write_text(unsecured())
    meet(provider="vault", params={"role": str(vault)})
    with pytest.raises(
        Failure, match=r"unknown token provider 'valt'; expected one of vault. Did you mean vault"
    ):
        meet(provider="valt")
    with pytest.raises(Failure, match=r"kafka\.sasl_oauth\.params of vault: key role is missing"):
        meet(provider="vault")
    look_again()


@pytest.mark.slow
def test_tokens_are_renewed_during_a_run_and_an_endpoint_that_is_away_for_a_while_does_not_end_it(
    oauth_broker: OAuthBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, plain, store = oauth_broker.service, oauth_broker.addresses["PLAIN"], tmp_path / "store"
    monkeypatch.setattr(logins, "AGAIN_S", 0.3)
    service.life_s = 6
    topic, dead = fresh_topic(plain), fresh_topic(plain, stem="dead")
    content = configured(store, topic, oauth_broker.login() | {"dead_letters": dead, "group": topic})
    sent = 0

    def more(messages: int = 5) -> None:
        nonlocal sent
        send(plain, topic, [edge(1, sent + i, T0 + sent + i) for i in range(messages)] + [b"{"])
        sent += messages
        reached(lambda: events_of(store) == sent)

    running = Running(StreamConfig(**content))
    try:
        with capture_logs() as logs:
            more()
            for _ in range(3):  # several sessions and tokens
                time.sleep(SESSION_MS / 1000)
                more()
            reached(lambda: running.ready() == (200, "ready"))
            assert len(service.forms) >= 3
            assert "no new token" not in [line["event"] for line in logs]

            service.life_s, forms = 15, len(service.forms)
            reached(lambda: len(service.forms) > forms)
            service.status = 503
            time.sleep(SESSION_MS / 1000)
            more()  # by the last token
            reached(lambda: "gives no token (HTTP 503" in running.ready()[1])  # which expires
            send(plain, topic, [edge(1, sent, T0 + sent)])
            sent += 1
            service.status = None
            reached(lambda: events_of(store) == sent and running.ready() == (200, "ready"))
            reached(lambda: len(read_topic(plain, dead)) == 5)
    finally:
        running.close()
    assert [ran.events for ran in running.ran] == [sent]
    events = [line["event"] for line in logs]
    assert [events.count(event) for event in ("no new token", "tokens are renewed again")] == [1, 1]
    assert run_job(content)[0].events == 0
