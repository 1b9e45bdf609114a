"""Configuration of brokers and topics: sections of the stream service's file."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from freshet_graph.schemas.fields import Fields, IdPrefix, OpName, Path, PathKeys, RecordColumn, path_keys
from freshet_graph.schemas.section import Section

TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
"""A name that Kafka accepts."""


SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]

_KEYS_BY_REGISTRY = frozenset({"avro"})

SCHEMA_IDS = {"value": "__value_schema_id", "key": "__key_schema_id"}
"""Headers of a record in which Confluent's serializers write the GUID of a schema."""


def _start(value: Any) -> Any:
    if value in ("earliest", "latest"):
        return value
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError("must be earliest, latest, or a time with its zone, such as 2026-01-01T00:00:00Z")
    return moment


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is no regular expression: {error}. A dot of a name is written \\."
        ) from None
    return pattern


StartAt = Annotated[Literal["earliest", "latest"] | datetime, BeforeValidator(_start)]
"""Where a topic begins: at its first message, after its last, or at the first message of a time or later."""


class Topic(Section):
    """One Kafka topic with events, or all topics whose names match a pattern."""

    name: TopicName | None = Field(None, description="Topic name; or give pattern.")
    pattern: Annotated[str, Field(min_length=1), AfterValidator(_expression)] | None = Field(
        None,
        description="Instead of name: a regular expression of whole names, such as payments\\..*; topics that match are read "
        "while they exist. A topic's own name comes before patterns, a pattern before those after it. Topics that the stream "
        "writes, and Kafka's own (__), match none.",
    )
    kind: Literal["events", "labels"] = Field(
        "events",
        description="events, or labels: each message is a label of an event (fields.event_id) or of a node (fields.node), which "
        "may come weeks later. Labels never move event time.",
    )
    sources: list[str] | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="Of a label topic: its sources (fields.source) by rank, the first wins: [analyst, model]. Labels of a source "
        "that is not listed, or without one, come last.",
    )
    start: StartAt | None = Field(
        None,
        description="Where it begins if the log does not know it: earliest, latest, or a time such as 2026-01-01T00:00:00Z "
        "(by the records' timestamps); null: as kafka.start.",
    )
    format: str = Field(
        "json",
        description="How its messages are written: json, arrow, avro, protobuf, debezium, debezium-avro, or a format of another "
        "package. CSV is read from files only, by replay and backfill.",
    )
    format_params: dict[str, Any] = Field(
        default_factory=dict,
        description="The format's own parameters. Of this package protobuf has some: {descriptor: shop.desc, message: "
        "shop.Payment} is for messages without a header.",
    )
    time_unit: Literal["s", "ms", "us", "ns", "rfc3339"] | None = Field(
        None,
        description="Unit of t. Null: RFC 3339 text is recognised; numbers are s for json, us for arrow, avro and "
        "protobuf, ms for debezium and debezium-avro.",
    )
    fields: Fields | None = Field(
        None,
        description="Paths to the fields of messages in another form, such as "
        "{src: card.id, dst: merchant.id, t: created_at}; null: src, dst, t … as in freshet-stream schema. Also of the record "
        "beside the message: $timestamp, $key, $headers.NAME, $topic, $partition.",
    )
    key_format: Literal["text", "integer", "json", "avro"] = Field(
        "text",
        description="How the keys of records are written, if fields names $key: text, integer (4 or 8 bytes, as Java's "
        "IntegerSerializer and LongSerializer), json, or avro with kafka.schema_registry.",
    )
    many: Path | Literal["."] | None = Field(
        None,
        description="Path of an array with an event in each element, such as order.items; fields lead through it "
        "(order.items.sku) or around it. '.': the message is the array, or has a JSON value per line.",
    )
    json_text: Path | None = Field(
        None,
        alias="json",
        description="Path of a text that is JSON itself, such as after of Debezium's MongoDB; fields lead through it "
        "(after.user).",
    )
    scale: dict[Path, Annotated[int, Field(ge=-38, le=38)]] | None = Field(
        None,
        description="Digits behind the point of decimals that come as bytes (in JSON in base64) without their scale, by path: "
        "{after.amount: 2}.",
    )
    ops: dict[str, OpName] | None = Field(
        None,
        min_length=1,
        description="Words of op, such as {c: insert, u: insert, d: delete}; a boolean, a whole number or null of a message is "
        "such a word, too: {true: delete}. Null: insert and delete.",
    )
    id_prefix: IdPrefix | None = Field(
        None,
        description="Text before ids, such as {src: 'card:', dst: 'merchant:'}; whole numbers become text. "
        "With ids: string.",
    )
    hold: bool = Field(
        True,
        description="Hold the topic, without committing its offsets, if its first 100 messages are all refused, at least 90 for "
        "one reason that a key mends; false: they are dead letters. Flink never holds topics.",
    )

    @field_validator("ops", mode="before")
    @classmethod
    def _spelled(cls, ops: Any) -> Any:
        """The words as JSON writes them: YAML reads true, 1 and null as what they are."""
        if not isinstance(ops, dict):
            return ops
        return {word if isinstance(word, str) else json.dumps(word): meaning for word, meaning in ops.items()}

    @property
    def label(self) -> str:
        """Its name or pattern, for sentences."""
        return str(self.name or self.pattern)

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.name is None) == (self.pattern is None):
            raise ValueError("a topic has either name or pattern. Give one of them")
        return self

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        if self.kind == "events":
            if self.sources is not None:
                raise ValueError(
                    f"topic {self.label}: sources ranks the sources of labels. Leave it out, or set kind: labels"
                )
            fields = self.fields
            if fields is not None and (
                fields.source is not None or (fields.src is None and fields.node is None)
            ):
                raise ValueError(
                    f"topic {self.label}: fields names those of a label. Set kind: labels, or name src and dst (edge events), "
                    "node (node events), or all three"
                )
            return self
        if self.fields is None:
            source = {} if self.sources is None else {"source": "source"}
            self.fields = Fields.model_validate(
                {"event_id": "event_id", "label": "label", "t": "t", **source}
            )
        if not self.fields.is_of_label:
            raise ValueError(
                f"topic {self.label} has kind labels. Its fields are event_id or node, label and t, and source if it has sources"
            )
        if self.sources is not None and self.fields.source is None:
            raise ValueError(
                f"topic {self.label}: sources ranks what fields.source says. Name source in fields"
            )
        if self.sources is not None and len({*self.sources}) < len(self.sources):
            raise ValueError(f"topic {self.label}: sources has one twice: {self.sources}")
        if self.id_prefix is not None and (self.labels_events or self.id_prefix.src or self.id_prefix.dst):
            raise ValueError(
                f"topic {self.label}: of labels only those of nodes have a prefix. Leave id_prefix out, or only its node in"
            )
        return self

    @property
    def labels_events(self) -> bool:
        """Whether its messages are labels of events, by their ids."""
        return self.kind == "labels" and self.fields is not None and self.fields.event_id is not None

    @model_validator(mode="after")
    def _mapped(self) -> Self:
        if self.fields is not None and self.ops is not None and self.fields.op is None:
            raise ValueError(
                f"topic {self.label}: ops has the words of op, but fields names no op. Name op in fields"
            )
        if self.key_format != "text" and not any(keys[0] == "$key" for keys in self.record_paths):
            raise ValueError(
                f"topic {self.label}: key_format is given, but fields names no $key. Leave it out"
            )
        inside = [keys for keys in self.record_paths if keys[0] == "$key" and len(keys) > 1]
        if inside and self.key_format not in ("json", "avro"):
            raise ValueError(
                f"topic {self.label}: fields names {'.'.join(inside[0])}, but key_format is {self.key_format}. "
                "Set key_format to json or avro"
            )
        return self

    @property
    def many_keys(self) -> PathKeys | None:
        """Keys of the array whose elements are events; none: the message itself."""
        return None if self.many is None else () if self.many == "." else path_keys(self.many)

    @model_validator(mode="after")
    def _elements_have_fields(self) -> Self:
        if self.many_keys and self.fields is None:
            raise ValueError(
                f"topic {self.label}: many is {self.many}, but fields is missing. Name fields inside of it, such as "
                f"{self.many}.src"
            )
        if self.many_keys and self.fields is not None:
            paths = [keys for _, _, keys in self.fields.paths()]
            if not any(keys[: len(self.many_keys)] == self.many_keys for keys in paths):
                raise ValueError(
                    f"topic {self.label}: no field lies inside of many, {self.many}. Write paths from the begin of the "
                    f"message, such as {self.many}.{'.'.join(paths[0])}"
                )
        return self

    @property
    def record_paths(self) -> list[PathKeys]:
        """Keys of the paths that lead beside the message."""
        paths = self.fields.paths() if self.fields is not None else ()
        return [keys for _, _, keys in paths if isinstance(keys[0], RecordColumn)]

    @property
    def record_columns(self) -> frozenset[str]:
        """Columns of Kafka's records that are read besides the value: $timestamp, $key, and $headers.NAME of each header."""
        return frozenset(
            ".".join(keys[:2]) if keys[0] == "$headers" else str(keys[0])
            for keys in self.record_paths
            if keys[0] in ("$timestamp", "$key", "$headers")
        )


def require_addresses(bootstrap: str) -> str:
    """The same text if each address in it has a host and a port.

    Raises:
        ValueError: One has not.
    """
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if re.fullmatch(r"[^\s:/]+|\[[^\s/]+\]", address.strip()):
            raise ValueError(f"{address.strip()} has no port, such as {address.strip()}:9092")
        if not re.fullmatch(r"[^\s:/]+|\[[^\s/]+\]", host) or not re.fullmatch(r"\d{1,5}", port, re.ASCII):
            raise ValueError(f"{address.strip()!r} is not host:port, such as 127.0.0.1:9092")
    return bootstrap


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.port is None or parts.port > 0
    except ValueError:  # of the port, or of brackets
        return False
    return named and re.fullmatch(r"https?://[^\s/?#][^\s?#]*", url) is not None


class SchemaRegistry(Section):
    """The registry of schemas: a service with Confluent's HTTP interface, or files; and how messages name their schemas."""

    url: str | None = Field(
        None,
        description="Its address, such as http://registry:8081, with a path if it has one. Of several, comma-separated, the "
        "next is asked when one does not answer. Null: schemas are in files, or not needed (JSON).",
    )
    header: Literal["confluent", "record", "apicurio", "glue"] = Field(
        "confluent",
        description="Where messages and keys have the id of their schema: confluent (before the value, 4 bytes), record (a GUID "
        "in the record's headers __value_schema_id and __key_schema_id; without one, before the value), apicurio (before the "
        "value, 8 bytes) or glue (AWS Glue's UUID before the value, which may be compressed).",
    )
    files: dict[str, str] = Field(
        default_factory=dict,
        description="Files with schemas, by id or UUID, which the registry is not asked for: JSON for Avro, a descriptor set of "
        "protoc for Protobuf. {17: payment.avsc}",
    )
    username: str | None = Field(None, description="Of a login (HTTP Basic); null: no login.")
    password: SecretStr | None = Field(
        None,
        description="With username; better from a file or FRESHET_STREAM_KAFKA__SCHEMA_REGISTRY__PASSWORD.",
    )
    password_file: str | None = Field(
        None, description="File with the password, such as a mounted secret; read at every request."
    )
    ssl_cafile: str | None = Field(
        None, description="Certificates of the authorities that sign the registry's, PEM; null: the system's."
    )
    timeout_s: float = Field(
        10.0,
        gt=0,
        le=300,
        description="Longest wait for a schema and all that it refers to, seconds.",
    )

    @property
    def has_schemas(self) -> bool:
        """Whether there are schemas; JSON behind a header needs none."""
        return bool(self.url or self.files)

    @property
    def urls(self) -> list[str]:
        """Each address, without a slash at its end."""
        return [url.strip().rstrip("/") for url in (self.url or "").split(",") if url]

    @field_validator("files", mode="before")
    @classmethod
    def _by_text(cls, files: Any) -> Any:
        """Ids as text: YAML reads 17 as a number."""
        return {str(key).lower(): file for key, file in files.items()} if isinstance(files, dict) else files

    @field_validator("url")
    @classmethod
    def _without_login(cls, url: str | None) -> str | None:
        if url is None:
            return None
        # An address is printed, so one that may hold a password is not repeated here either.
        if "@" in url:
            raise ValueError(
                "has a login before the @. Leave it out of the address, and give it as kafka.schema_registry.username and "
                "kafka.schema_registry.password or password_file"
            )
        if not all(_is_http(address.strip()) for address in url.split(",")):
            raise ValueError(
                "must be an address such as http://registry:8081, or several with commas between them"
            )
        return url

    @model_validator(mode="after")
    def _asks_no_glue(self) -> Self:
        if self.header == "glue" and self.url is not None:
            raise ValueError(
                "schema_registry has header glue and url, but AWS Glue's registry is not asked. Leave out url, and name schemas "
                "in files, by UUID"
            )
        return self

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        given = [name for name in ("password", "password_file") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError("schema_registry has password and password_file. Give one of them")
        if bool(given) != (self.username is not None):
            raise ValueError(
                "schema_registry has username without a password, or the reverse. Give both or neither"
            )
        return self


class SaslOAuth(Section):
    """Where the tokens of OAUTHBEARER come from: a token endpoint, a file, or a provider of another package."""

    token_endpoint: str | None = Field(
        None,
        description="Address that gives tokens for a client's id and secret, such as https://login.example.org/oauth2/token.",
    )
    client_id: str | None = Field(None, description="With token_endpoint.")
    client_secret: SecretStr | None = Field(
        None,
        description="With token_endpoint; better from a file or FRESHET_STREAM_KAFKA__SASL_OAUTH__CLIENT_SECRET.",
    )
    client_secret_file: str | None = Field(
        None, description="File with the secret, such as a mounted one; read for every token."
    )
    scope: str | None = Field(None, description="Scopes to ask for, with blanks between them; null: none.")
    parameters: dict[str, str] = Field(
        default_factory=dict, description="Further parameters of the request, such as {audience: kafka}."
    )
    ssl_cafile: str | None = Field(
        None, description="Certificates of the authorities that sign the endpoint's, PEM; null: the system's."
    )
    timeout_s: float = Field(5.0, gt=0, le=60, description="Longest wait for a token, seconds.")
    token_file: str | None = Field(
        None, description="Instead of token_endpoint: a file with the token, read at every connection."
    )
    provider: str | None = Field(
        None, description="Instead of token_endpoint: a token provider of another package, by its name."
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="The provider's own parameters, without secrets."
    )
    extensions: dict[str, str] = Field(
        default_factory=dict, description="Given to brokers with the token, such as {logicalCluster: lkc-1}."
    )

    @field_validator("token_endpoint")
    @classmethod
    def _without_login(cls, url: str | None) -> str | None:
        # As for the registry, what may hold a password is not repeated.
        if url is not None and ("@" in url or not _is_http(url)):
            raise ValueError(
                "must be an address such as https://login.example.org/oauth2/token. Give the client as client_id and "
                "client_secret or client_secret_file"
            )
        return url

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = ("token_endpoint", "token_file", "provider")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"sasl_oauth has {' and '.join(given) or 'no source'}. Give one of {', '.join(sources)}"
            )
        secrets = [
            name for name in ("client_secret", "client_secret_file") if getattr(self, name) is not None
        ]
        if self.token_endpoint is not None and (self.client_id is None or len(secrets) != 1):
            raise ValueError(
                "sasl_oauth.token_endpoint needs client_id, and client_secret or client_secret_file. Give both"
            )
        return self


class Brokers(Section):
    """Addresses and logins of brokers, and the registry beside them."""

    bootstrap: Annotated[str, AfterValidator(require_addresses)] = Field(
        min_length=1, description="host:port of the brokers, comma-separated."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="As in Kafka clients."
    )
    sasl_mechanism: SaslMechanism | None = Field(
        None, description="With SASL. AWS_MSK_IAM takes AWS's own credentials from its environment."
    )
    sasl_username: str | None = Field(None, description="With PLAIN and SCRAM.")
    sasl_password: SecretStr | None = Field(
        None, description="With PLAIN and SCRAM; better from a file or FRESHET_STREAM_KAFKA__SASL_PASSWORD."
    )
    sasl_password_file: str | None = Field(
        None, description="File with the password, such as a mounted secret; read at every connection."
    )
    sasl_oauth: SaslOAuth | None = Field(
        None, description="With OAUTHBEARER, such as {token_file: /run/secrets/kafka-token}."
    )
    ssl_cafile: str | None = Field(
        None, description="Certificates of the authorities that sign brokers', PEM; null: the system's."
    )
    ssl_certfile: str | None = Field(
        None, description="Client certificate, PEM, followed by its chain; null: none."
    )
    ssl_keyfile: str | None = Field(None, description="Key of ssl_certfile, PEM; null: it is in that file.")
    ssl_password: SecretStr | None = Field(
        None, description="Password of an encrypted key; better from a file or the environment."
    )
    ssl_password_file: str | None = Field(None, description="File with the password of the key.")
    api_version: tuple[int, ...] | None = Field(
        None, description="Protocol version to assume, such as [2, 1]; null: ask the broker."
    )
    schema_registry: SchemaRegistry | None = Field(
        None,
        description="For topics whose messages are Avro or Protobuf, such as {url: 'http://registry:8081'}.",
    )

    @property
    def servers(self) -> list[str]:
        """host:port of each bootstrap broker."""
        return [server.strip() for server in self.bootstrap.split(",")]

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether brokers require a login."""
        return self.security_protocol.startswith("SASL")

    @model_validator(mode="after")
    def _secured_as_meant(self) -> Self:
        for name in ("sasl_password", "ssl_password"):
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"give {name} or {name}_file, not both")
        if self.uses_sasl:
            self._require_login_keys()
        elif self.sasl_mechanism is not None:
            raise ValueError(
                f"sasl_mechanism is given, but security_protocol {self.security_protocol} has no login. "
                f"Set it to SASL_{self.security_protocol}"
            )
        files = [name for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile") if getattr(self, name)]
        if files and not self.uses_tls:
            raise ValueError(
                f"{', '.join(files)} given, but security_protocol {self.security_protocol} has no TLS. "
                "Set it to SSL or SASL_SSL"
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile is given without ssl_certfile. Give both")
        return self

    def _require_login_keys(self) -> None:
        has_password = self.sasl_password is not None or self.sasl_password_file is not None
        password = {
            "sasl_username": bool(self.sasl_username),
            "sasl_password or sasl_password_file": has_password,
        }
        oauth = {"sasl_oauth": self.sasl_oauth is not None}
        if self.sasl_mechanism == "OAUTHBEARER":
            needed, foreign = oauth, password
        elif self.sasl_mechanism == "AWS_MSK_IAM":
            needed, foreign = {}, password | oauth
        else:
            needed, foreign = {"sasl_mechanism": self.sasl_mechanism is not None, **password}, oauth
        if missing := [name for name, value in needed.items() if not value]:
            raise ValueError(f"security_protocol {self.security_protocol} needs {', '.join(missing)}")
        if extra := [name for name, value in foreign.items() if value]:
            raise ValueError(
                f"sasl_mechanism {self.sasl_mechanism} takes no {', '.join(extra)}. Leave it out"
            )
        if self.sasl_mechanism == "AWS_MSK_IAM" and not self.uses_tls:
            raise ValueError("sasl_mechanism AWS_MSK_IAM needs TLS. Set security_protocol to SASL_SSL")


class Kafka(Brokers):
    """Broker, topics and client limits."""

    topics: list[Topic] = Field(min_length=1, description="Topics to read.")
    dead_letters: TopicName | None = Field(
        None, description="Topic for refused messages; null: kept in the log only."
    )
    group: str | None = Field(
        None, description="Consumer group that lag monitors watch; default freshet-<graph>."
    )
    max_poll_records: int = Field(
        20_000, ge=1, description="Most messages of a topic partition passed on at a time."
    )
    max_partition_fetch_bytes: int = Field(
        8 << 20, ge=1 << 10, description="Most bytes per fetch and partition."
    )
    max_message_bytes: int = Field(
        16 << 20,
        ge=1,
        description="Longest message, bytes; longer ones are refused. Also the most text of Arrow dictionaries at a time.",
    )
    max_batch_bytes: int = Field(
        128 << 20,
        ge=1,
        description="Longest batch of a producer, decompressed, bytes; a longer one ends the stream.",
    )
    max_message_rows: int = Field(
        1 << 20,
        ge=1,
        description="Most rows of an Arrow message over all its batches; a message with more is refused.",
    )
    on_gap: Literal["fail", "skip"] = Field(
        "fail", description="If retention deleted unread offsets: stop, or skip and count them."
    )
    start: StartAt = Field(
        "earliest",
        description="Where a topic that is new to the log begins: earliest, latest, or a time such as 2026-01-01T00:00:00Z. "
        "Partitions added to a known topic, and topics that join a pattern later, begin at earliest.",
    )
    metadata_refresh_s: float = Field(
        5.0, gt=0, le=3600, description="Seconds between checks for new partitions and topics."
    )
    _publications: frozenset[str] = PrivateAttr(default=frozenset())
    """Topics of the section ``publish``, which no pattern reads."""

    @field_validator("topics")
    @classmethod
    def _distinct(cls, topics: list[Topic]) -> list[Topic]:
        names = [topic.label for topic in topics]
        if len(set(names)) < len(names):
            raise ValueError(f"topics must have distinct names, found {names}")
        return topics

    def record_columns(self, topic: Topic) -> frozenset[str]:
        """Columns of a topic's records that are read besides the value: those of its fields, and headers with a schema's id."""
        registry = self.schema_registry
        if registry is None or registry.header != "record":
            return topic.record_columns
        with_key = topic.key_format in _KEYS_BY_REGISTRY
        return topic.record_columns | {
            f"$headers.{SCHEMA_IDS[part]}" for part in ("value", "key")[: 1 + with_key]
        }

    @property
    def has_patterns(self) -> bool:
        """Whether topics are read that no name names."""
        return any(topic.pattern is not None for topic in self.topics)

    def topic_of(self, name: str) -> Topic | None:
        """The entry by which a topic is read, with its name; None: it is not read.

        An entry with that name comes first, then the first pattern that matches. The copy of a pattern's entry has both.
        """
        for topic in self.topics:
            if topic.name == name:
                return topic
        if name.startswith("__") or name == self.dead_letters or name in self._publications:
            return None
        for topic in self.topics:
            if topic.pattern is not None and re.fullmatch(topic.pattern, name):
                return topic.model_copy(update={"name": name})
        return None

    def has_labels(self, name: str) -> bool:
        """Whether a topic is read as labels."""
        topic = self.topic_of(name)
        return topic is not None and topic.kind == "labels"

    def start_of(self, name: str) -> StartAt | None:
        """Where a topic begins if the log does not know it; None: it is not read."""
        topic = self.topic_of(name)
        return None if topic is None else topic.start or self.start

    def by_pattern(self, name: str) -> bool:
        """Whether a topic is read for a pattern: it may come and go."""
        topic = self.topic_of(name)
        return topic is not None and topic.pattern is not None

    def topics_among(self, existing: Iterable[str]) -> list[str]:
        """All names in the configuration, and those existing topics that match a pattern, in order of name."""
        names = [topic.name for topic in self.topics if topic.name is not None]
        return names + sorted(name for name in existing if self.by_pattern(name))

    @model_validator(mode="after")
    def _keys_have_schemas(self) -> Self:
        for topic in self.topics:
            registry = self.schema_registry
            if topic.key_format in _KEYS_BY_REGISTRY and not (registry and registry.has_schemas):
                raise ValueError(
                    f"topic {topic.label}: key_format is avro, whose schemas are in a registry. "
                    "Give its address in kafka.schema_registry.url"
                )
        return self

    @model_validator(mode="after")
    def _letters_go_elsewhere(self) -> Self:
        if self.dead_letters in {topic.name for topic in self.topics if topic.name is not None}:
            raise ValueError(
                f"dead_letters is {self.dead_letters!r}, which is among topics: refused messages would come back for ever. "
                "Choose a topic that is not read"
            )
        return self
