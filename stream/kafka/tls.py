"""TLS towards brokers: one context for every client. Files are read here, so that each fault names its key."""

import re
import ssl
from pathlib import Path

from pydantic import SecretStr

from freshet_graph.schemas.config import Kafka
from freshet_graph.stream.service.failure import Failure


class CredentialError(Failure):
    """A certificate, or a file with one, a key or a password, can't be used: a job that has begun waits for another one."""


LOGIN_AGAIN_S = 5.0
"""Pause after a refused login: accounts may be locked after a few."""


class LoginRefusedError(CredentialError):
    """Brokers refuse the password, as while it is being changed on both sides."""


def tls_context(kafka: Kafka) -> ssl.SSLContext | None:
    """The configured context: TLS 1.2 or newer, certificates and host names always checked; None without TLS.

    Raises:
        CredentialError: A file can't be read or used; the sentence names its key.
    """
    if not kafka.uses_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if kafka.ssl_cafile is None:
        context.load_default_certs()
    else:
        _readable("ssl_cafile", kafka.ssl_cafile)
        try:
            context.load_verify_locations(kafka.ssl_cafile)
        except ssl.SSLError as error:
            raise CredentialError(
                f"kafka.ssl_cafile: {kafka.ssl_cafile} holds no certificate in PEM form"
            ) from error
    if kafka.ssl_certfile is not None:
        _load_own(context, kafka, kafka.ssl_certfile)
    return context


def secret(key: str, value: SecretStr | None, file: str | None) -> str | None:
    """A password or token from the configuration or from its file, without the line break at the file's end.

    A file is read at every call, so that a changed one applies from the next connection on.

    Raises:
        CredentialError: The file can't be read or is empty.
    """
    if file is None:
        return None if value is None else value.get_secret_value()
    _readable(f"{key}_file", file)
    try:
        content = Path(file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:  # its text quotes the content
        content = ""
    if not content:
        raise CredentialError(
            f"kafka.{key}_file: {file} is empty or not text. Write the {re.split('[._]', key)[-1]} into it"
        )
    return content


def _load_own(context: ssl.SSLContext, kafka: Kafka, certificate: str) -> None:
    _readable("ssl_certfile", certificate)
    if kafka.ssl_keyfile is not None:
        _readable("ssl_keyfile", kafka.ssl_keyfile)
    password = secret("ssl_password", kafka.ssl_password, kafka.ssl_password_file)
    try:
        # Never None, with which OpenSSL would ask at the terminal and wait.
        context.load_cert_chain(certificate, kafka.ssl_keyfile, password or "")
    except (ssl.SSLError, ValueError) as error:
        key = kafka.ssl_keyfile or certificate
        raise CredentialError(
            f"kafka.ssl_certfile and kafka.ssl_keyfile: {certificate} and {key} are not a certificate and its key in "
            "PEM form, or kafka.ssl_password is not the key's"
        ) from error


def _readable(key: str, file: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise CredentialError(f"kafka.{key}: {file} cannot be read: {error.strerror}") from error
