"""Answers received in place are the bytes that were sent, however the network cuts them."""

import socket
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import KafkaConnectionError
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslBytesRequest

from stream.kafka import receiving
from stream.kafka.receiving import LONG_BYTES, _InPlace

sizes = st.integers(0, 300) | st.sampled_from([LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 3 * LONG_BYTES])


class Connection:
    """What stands between transport and parser in the client: hands answers on, and remembers their bytes."""

    def __init__(self) -> None:
        self.parser = KafkaProtocol(receive_message_max_bytes=1 << 20)
        self.answers: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.answers += [bytes(answer.auth_bytes) for _, answer in self.parser.receive_bytes(data)]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = error


class Readable:
    """An event loop that is told when there is something to read by being called again."""

    def __init__(self) -> None:
        self.wait_read = lambda sock: self
        self.call_soon = self.cancel = self.unregister_event = lambda *_: None

    def __await__(self):
        yield


def transport():
    """A transport that reads one end of a pair of sockets, its protocol, its reading task, and the other end."""
    near, far = socket.socketpair()
    near.setblocking(False)
    reading, protocol = _InPlace(Readable(), near), Connection()
    reading.set_protocol(protocol)
    reading.resume_reading()
    task = reading._read_from_sock()
    task.send(None)
    return reading, protocol, task, far


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sizes, st.binary(min_size=1, max_size=4)), min_size=1, max_size=6), st.data())
def test_answers_are_what_was_sent(content, data):
    answers = [(pattern * (size // len(pattern) + 1))[:size] for size, pattern in content]
    reading, protocol, task, far = transport()
    for _ in answers:
        protocol.parser.send_request(SaslBytesRequest(b""))
    stream = b"".join(struct.pack(">i", len(answer)) + answer for answer in answers)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for at in range(start, end, 50_000):  # less than a pair of sockets holds
            far.sendall(stream[at : min(at + 50_000, end)])
            task.send(None)
    assert protocol.answers == answers
    task.close()
    reading._sock.close()
    far.close()


def test_an_answer_longer_than_the_client_takes_ends_the_connection():
    _, protocol, task, far = transport()
    far.sendall(struct.pack(">i", 1 << 30))
    with pytest.raises(StopIteration):
        task.send(None)
    assert "frame length" in str(protocol.lost)
    far.close()


def test_a_connection_that_ends_within_an_answer_is_lost():
    _, protocol, task, far = transport()
    protocol.parser.send_request(SaslBytesRequest(b""))
    far.sendall(struct.pack(">i", 2 * LONG_BYTES) + bytes(LONG_BYTES))
    task.send(None)
    far.close()
    with pytest.raises(StopIteration):
        task.send(None)
    assert isinstance(protocol.lost, KafkaConnectionError)
    assert protocol.answers == []


def test_only_a_buffer_of_bounded_length_is_kept(monkeypatch):
    monkeypatch.setattr(receiving, "KEPT_BYTES", 100)
    reading = SimpleNamespace(_kept=memoryview(b""))
    first = _InPlace._answer(reading, KafkaBytes(90))
    assert len(reading._kept) == len(first) == 90
    assert len(_InPlace._answer(reading, KafkaBytes(101))) == 101
    assert len(reading._kept) == 90
