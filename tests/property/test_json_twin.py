"""The columnar JSON scanner against its plain twin, message by message, on anything that looks like a message."""

from dataclasses import replace

import numpy as np
from drawn_json import MESSAGES, NUMBERS, assert_twins_agree
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freshet_graph.schemas.fields import MAX_PATH_KEYS
from freshet_graph.stream.decode import json_kernel, json_messages
from freshet_graph.stream.decode.mapping import NATIVE
from freshet_graph.stream.decode.times import SCALE_DIGITS, number_to_us, rfc3339_to_us


@settings(max_examples=125, deadline=None)
@given(
    st.lists(MESSAGES, min_size=1, max_size=12),
    st.sampled_from(["int", "string"]),
    st.sampled_from(["s", "ms", "us", "ns", "rfc3339"]),
    st.booleans(),
)
@example([b'{"src":1,"dst":2,"t":1}{"src":3,"dst":4,"t":1}', b""], "int", "s", False)
@example([b'{"src":1', b',"dst":2,"t":3}'], "int", "s", False)
@example([b'{"src":1,"dst":2,"t":3,"x":' + b"[" * 70 + b"]" * 70 + b"}"], "int", "s", False)
@example([b'{"src":1,"dst":2,"t":3,"x":' + b"[" * 62 + b"]" * 62 + b"}"], "int", "s", False)
@example([b'{"src":1,"dst":2,"t":3,"x":' + b'{"a":' * 100_000], "int", "s", False)
@example([b'{"src":1,"dst":2,"t":"2024-01-01T00:00:00Z"}', b'{"src":1,"dst":2,"t":3}'], "int", "ns", True)
def test_scanner_and_twin_accept_the_same_events_and_refuse_the_same_messages(
    messages, ids, unit, time_texts
):
    assert_twins_agree(messages, ids, unit, replace(NATIVE, time_texts=time_texts))


def bytes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


@settings(max_examples=250, deadline=None)
@given(
    st.one_of(
        NUMBERS,
        # Next to the border between two float32.
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(
            lambda f: repr(
                float((np.float64(f) + np.float64(np.nextafter(np.float32(f), np.float32(np.inf)))) / 2)
            )
        ),
    )
)
def test_float32_of_a_number_equals_the_rounded_float64(text):
    data = bytes_of(text)
    end, negative, digits, power, exact_, _ = json_kernel.scan_number(data, 0, len(data))
    if end == len(data):
        certain, value = json_kernel.to_float32(negative, digits, power, exact_)
        if certain:
            with np.errstate(over="ignore"):
                assert np.float32(value).tobytes() == np.float32(float(text)).tobytes()


def test_numbers_that_producers_write_need_no_second_look():
    for value in np.random.default_rng(0).standard_normal(2000):
        for text in (repr(float(value)), repr(float(np.float32(value))), f"{value:.3e}", f"{value:.7f}"):
            data = bytes_of(text)
            _, negative, digits, power, exact_, _ = json_kernel.scan_number(data, 0, len(data))
            certain, got = json_kernel.to_float32(negative, digits, power, exact_)
            assert certain
            assert np.float32(got) == np.float32(float(text))


@settings(max_examples=150, deadline=None)
@given(NUMBERS, st.sampled_from(["s", "ms", "us", "ns"]))
def test_microseconds_of_a_number_equal_exact_decimal_arithmetic(text, unit):
    data = bytes_of(text)
    end, negative, digits, power, exact_, _ = json_kernel.scan_number(data, 0, len(data))
    if end == len(data):
        certain, micros = json_kernel.to_us(negative, digits, power + SCALE_DIGITS[unit], exact_)
        if certain:
            assert micros == number_to_us(text, unit)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.builds(
            "{}-{:02}-{:02}{}{:02}:{:02}:{:02}{}{}".format,
            st.one_of(st.integers(1990, 2030), st.sampled_from(["0000", "0001", "1900", "2000", "9999"])),
            st.integers(0, 13),
            st.integers(0, 32),
            st.sampled_from("Tt "),
            st.integers(0, 24),
            st.integers(0, 60),
            st.integers(0, 61),
            st.one_of(st.just(""), st.just("."), st.from_regex(r"\A\.[0-9]{1,12}\Z")),
            st.sampled_from(["Z", "z", "", "+00:00", "-23:59", "+24:00", "+1:00", "+01:60", "+0100"]),
        ),
        st.datetimes().map(lambda d: d.isoformat() + "+02:30"),
    )
)
def test_rfc3339_kernel_equals_its_twin(text):
    data = bytes_of(text)
    try:
        expected = rfc3339_to_us(text)
    except ValueError:
        expected = None
    certain, micros = json_kernel.rfc3339(data, 0, len(data))
    assert (micros if certain else None) == expected


@settings(max_examples=250, deadline=None)
@given(
    st.one_of(st.binary(max_size=8), st.text(max_size=4).map(lambda s: s.encode("utf-8", "surrogatepass")))
)
@example(b"\xf4\x90\x80\x80")
@example(b"\xc0\xaf")
@example(b"\xed\xa0\x80")
def test_utf8_kernel_equals_python(raw):
    try:
        raw.decode("utf-8")
        expected = True
    except UnicodeDecodeError:
        expected = False
    assert json_kernel.is_utf8(np.frombuffer(raw, np.uint8), 0, len(raw)) == expected


def test_depth_limits_leave_the_scanner_the_stricter_one():
    assert MAX_PATH_KEYS + json_kernel.MAX_SKIPPED_DEPTH < json_messages.MAX_DEPTH
