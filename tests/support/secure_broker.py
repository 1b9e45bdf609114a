"""A real Apache Kafka with TLS and SASL listeners beside the plain one that its tests set it up through."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Issued
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from kafka_broker import broker, free_addresses
from streaming import settings

UNKNOWN = "nowhere.invalid:9092"
USER, PASSWORD = "freshet", "c4nary-p4ssw0rd"
KEY_PASSWORD = "c4nary-k3y"
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}

_PROTOCOLS = {
    "CONTROLLER": "PLAINTEXT", "PLAIN": "PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL", "EXPIRED": "SSL",
    "OTHERHOST": "SSL", "LOGIN": "SASL_SSL", "OPENLOGIN": "SASL_PLAINTEXT",
    "PROXIED": "PLAINTEXT", "UNKNOWN": "PLAINTEXT",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SecureBroker:
    """Addresses by listener, and what clients need.

    Attributes:
        addresses: host:port by name: PLAIN, TLS, MUTUAL (a client certificate is required), EXPIRED and OTHERHOST
            (whose certificates are), LOGIN (SASL over TLS), OPENLOGIN (SASL without), PROXIED (plain, advertises ``proxy``),
            UNKNOWN (plain, advertises a name that does not resolve).
        proxy: Where nothing listens unless a test does.
        ca: The authority that signed them.
        stranger_ca: One that did not.
        client: A client's certificate, its key encrypted with KEY_PASSWORD.
    """

    addresses: dict[str, str]
    proxy: str
    ca: Path
    stranger_ca: Path
    client: Issued

    def login(self, mechanism: str, **more: Any) -> dict[str, Any]:
        """Keys of the section ``kafka`` for SASL over TLS."""
        return {
            "bootstrap": self.addresses["LOGIN"],
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_username": USER,
            "sasl_password": PASSWORD,
            "ssl_cafile": str(self.ca),
            **more,
        }

    def tls(self, listener: str, **more: Any) -> dict[str, Any]:
        """Keys of the section ``kafka`` for TLS."""
        return {
            "bootstrap": self.addresses[listener],
            "security_protocol": "SSL",
            "ssl_cafile": str(self.ca),
            **more,
        }


@pytest.fixture(scope="session")
def secure(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker of its own; ``kafka`` is asked for so that a machine without one says so in one way."""
    folder = tmp_path_factory.mktemp("secure")
    authority, stranger = Authority(folder, "own"), Authority(folder, "stranger")
    good = authority.issue("broker")
    stores = {
        "TLS": good, "LOGIN": good, "MUTUAL": good,
        "EXPIRED": authority.issue("expired", days=(-9, -2)),
        "OTHERHOST": authority.issue("elsewhere", host="kafka.example.org"),
    }  # fmt: skip
    addresses = free_addresses([*_PROTOCOLS, "PROXY"])
    proxy = addresses.pop("PROXY")
    extra = _properties(addresses, {"PROXIED": proxy, "UNKNOWN": UNKNOWN}, stores, authority.file)
    data = str(folder / "kafka")
    broker("start", "--data", data, *(f"--property={key}={value}" for key, value in extra.items()))
    try:
        set_password(addresses["PLAIN"], USER, PASSWORD)
        client = authority.issue("client", host=None, password=KEY_PASSWORD)
        yield SecureBroker(addresses, proxy, authority.file, stranger.file, client)
    finally:
        broker("stop", "--data", data)


def _properties(
    addresses: dict[str, str], elsewhere: dict[str, str], stores: dict[str, Issued], ca: Path
) -> dict[str, str]:
    login = "org.apache.kafka.common.security"
    open_ = {name: address for name, address in addresses.items() if name != "CONTROLLER"} | elsewhere
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in open_.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in _PROTOCOLS.items()),
        "controller.quorum.voters": f"1@{addresses['CONTROLLER']}",
        "inter.broker.listener.name": "PLAIN",
        "sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM]),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.openlogin.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        # Rights are asked for only where a test gives some; the plain listener may do everything.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    for name, store in stores.items():
        prefix = f"listener.name.{name.lower()}.ssl"
        properties |= {
            f"{prefix}.keystore.type": "PEM", f"{prefix}.keystore.location": str(store.both),
            f"{prefix}.truststore.type": "PEM", f"{prefix}.truststore.location": str(ca),
        }  # fmt: skip
    for name in ("login", "openlogin"):
        user = f'username="broker" password="unused" user_{USER}="{PASSWORD}"'
        properties[f"listener.name.{name}.plain.sasl.jaas.config"] = (
            f"{login}.plain.PlainLoginModule required {user};"
        )
        for mechanism in SCRAM:
            key = f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config"
            properties[key] = f"{login}.scram.ScramLoginModule required;"
    return properties


def set_password(bootstrap: str, user: str, password: str) -> None:
    """Make a user, or change its password; for SCRAM."""
    admin = KafkaAdminClient(**settings(bootstrap))
    for mechanism in SCRAM.values():  # brokers take one change a user and request
        wanted = UserScramCredentialUpsertion(user, mechanism, password, iterations=4096)
        answers = admin.alter_user_scram_credentials([wanted])
        assert not any(answers.values()), answers
    admin.close()
