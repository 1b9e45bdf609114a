"""Where logins come from: tokens that are renewed in time, and AWS's signature as AWS's own library makes it."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from kafka.net.sasl import get_sasl_mechanism, msk

from freshet_graph.schemas.config import Kafka, StreamConfig
from freshet_graph.stream.cluster.plan import ClusterPlan
from freshet_graph.stream.kafka import logins
from freshet_graph.stream.kafka.client import client_settings
from freshet_graph.stream.kafka.greeting import greet
from freshet_graph.stream.kafka.logins import Tokens, refusal
from freshet_graph.stream.kafka.tls import CredentialError
from freshet_graph.stream.service.failure import Failure

MSK = {
    "bootstrap": "b-1.demo.kafka.eu-central-1.amazonaws.com:9098",
    "topics": [{"name": "edges"}],
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "AWS_MSK_IAM",
}
OAUTH = {"token_endpoint": "https://login.example.org/token", "client_id": "a", "client_secret": "b"}


class Clock:
    """Moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(logins.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def source(answers: list[Any]) -> Callable[[], tuple[str, float]]:
    def get() -> tuple[str, float]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return get


def test_a_token_is_used_for_three_quarters_of_its_life_and_to_its_end_if_there_is_no_other(
    clock: Clock,
) -> None:
    answers: list[Any] = [
        ("one", 100.0),
        CredentialError("away"),
        CredentialError("still away"),
        ("two", 100.0),
    ]
    tokens = Tokens("the source", source(answers), 5.0)
    assert [tokens.token(), tokens.token()] == ["one", "one"]
    clock.now_s += 76
    assert tokens.token() == "one"
    assert len(answers) == 2
    clock.now_s += 1
    assert tokens.token() == "one"
    assert len(answers) == 2, "not asked again at once"
    clock.now_s += 24
    with pytest.raises(CredentialError, match="still away"):
        tokens.token()
    clock.now_s += 3
    assert tokens.token() == "two"


def test_a_token_without_a_time_is_for_one_login(clock: Clock) -> None:
    tokens = Tokens("the source", source([("one", 0.0), ("two", 0.0)]), 5.0)
    assert tokens.token() == "one"
    clock.now_s += 0.1
    assert tokens.token() == "two"


def test_a_source_that_hangs_holds_up_a_login_for_a_moment_while_the_last_token_is_valid(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "SOON_S", 0.01)
    over, answers = threading.Event(), [("one", 100.0)]

    def get() -> tuple[str, float]:
        if not answers:
            over.wait(30)
            return "late", 1.0
        return answers.pop()

    tokens = Tokens("the source", get, 0.02)
    assert tokens.token() == "one"
    clock.now_s += 80
    assert tokens.token() == "one"
    clock.now_s += 30
    with pytest.raises(
        CredentialError, match=r"the source gives no token within 0\.02 s\. It is asked again"
    ):
        tokens.token()
    over.set()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"sasl_mechanism": "OAUTHBEARER"}, "SASL_SSL needs sasl_oauth"),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth": {}},
            "sasl_oauth has no source. Give one of token_endpoint, token_file",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth": OAUTH | {"token_file": "/t"}},
            "sasl_oauth has token_endpoint and token_file. Give one of",
        ),
        (
            {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth": {"token_endpoint": "https://a/t", "client_id": "x"},
            },
            "sasl_oauth.token_endpoint needs client_id, and client_secret or client_secret_file",
        ),
        (
            {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth": OAUTH | {"token_endpoint": "https://a:secret@b/t"},
            },
            "must be an address such as https://login.example.org/oauth2/token",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth": OAUTH, "sasl_username": "x"},
            "sasl_mechanism OAUTHBEARER takes no sasl_username. Leave it out",
        ),
        (
            {"sasl_mechanism": "PLAIN", "sasl_username": "x", "sasl_password": "y", "sasl_oauth": OAUTH},
            "sasl_mechanism PLAIN takes no sasl_oauth",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT"},
            "sasl_mechanism AWS_MSK_IAM needs TLS. Set security_protocol to SASL_SSL",
        ),
    ],
)
def test_a_login_that_cannot_work_is_refused_with_its_key(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="1 validation error") as error:
        Kafka.model_validate(MSK | keys)
    assert sentence in str(error.value)
    assert "secret@" not in str(error.value)


def test_a_plan_for_flink_has_no_secret_and_workers_take_it_from_their_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {**MSK, "sasl_mechanism": "OAUTHBEARER", "sasl_oauth": OAUTH | {"client_secret": "c4nary"}}
    config = StreamConfig.model_validate({"graph": "g", "store": "s", "kafka": keys})
    plan = ClusterPlan.of(config, [])
    assert "c4nary" not in plan.settings
    with pytest.raises(
        Failure, match=r"needs client_id, and client_secret .*Give them to the worker's environment"
    ):
        plan.config()
    monkeypatch.setenv("FRESHET_STREAM_KAFKA__SASL_OAUTH__CLIENT_SECRET", "c4nary")
    oauth = plan.config().kafka.sasl_oauth
    assert oauth == config.kafka.sasl_oauth


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No credentials, and nothing asked in a network."""
    for name in (
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    return monkeypatch


def test_missing_credentials_and_region_of_aws_are_named_before_a_broker_is_asked(
    no_aws: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka.model_validate(MSK)
    with pytest.raises(
        CredentialError,
        match=r"reading: .*gives no credentials of AWS. Set AWS_PROFILE, or AWS_ACCESS_KEY_ID",
    ):
        greet(kafka, "reading")
    no_aws.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(
        CredentialError, match=r"the region of the cluster is unknown. Set AWS_DEFAULT_REGION"
    ):
        greet(kafka, "reading")
    no_aws.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(CredentialError, match=r"AWS_MSK_IAM: .*nobody.*\. Check the AWS_ variables"):
        greet(kafka, "reading")
    assert "kafka-cluster:Connect" in refusal(kafka)


@pytest.mark.parametrize("session_token", [None, "a/session+token=="])
def test_the_payload_for_msk_is_signed_as_aws_signs_it(
    no_aws: pytest.MonkeyPatch, session_token: str | None
) -> None:
    no_aws.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    no_aws.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    if session_token:
        no_aws.setenv("AWS_SESSION_TOKEN", session_token)
    kafka, moment = Kafka.model_validate(MSK), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    class Now(datetime):
        @classmethod
        def now(cls, *_: object) -> datetime:
            return moment

    no_aws.setattr(msk.datetime, "datetime", Now)
    host = kafka.servers[0].partition(":")[0]
    settings = client_settings(kafka)
    payload = json.loads(get_sasl_mechanism("AWS_MSK_IAM")(**settings, host=host).auth_bytes())

    def signed() -> dict[str, str]:
        credentials = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", session_token)
        request = AWSRequest("GET", f"https://{host}/?Action=kafka-cluster%3AConnect")
        SigV4QueryAuth(credentials, "kafka-cluster", "eu-central-1", expires=900).add_auth(request)
        return {key.lower(): value[0] for key, value in parse_qs(urlsplit(request.url).query).items()}

    no_aws.setattr(
        "botocore.auth.get_current_datetime",
        lambda *_, **__: moment.replace(tzinfo=None),
        raising=False,
    )
    expected = signed()
    assert payload.pop("version") == "2020_10_22"
    assert payload.pop("host") == host
    assert payload.pop("user-agent")
    assert payload == expected
