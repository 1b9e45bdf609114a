"""Kernels of the stream are compiled for one kind of arrays: no poll's bytes have them compiled again in mid-stream."""

import numpy as np
import pyarrow as pa
import pytest
from numba.core.dispatcher import Dispatcher

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import IdKind
from freshet_graph.stream.decode import json_kernel
from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.kernels import read_only
from freshet_graph.stream.microbatch import RawBatch
from freshet_graph.stream.snapshots import dictionary, string_dictionary
from freshet_graph.stream.snapshots.dictionary import new_dictionary


def kinds_of_arrays(*modules: object) -> dict[str, int]:
    return {
        f"{name}": len(kernel.signatures)
        for module in modules
        for name, kernel in vars(module).items()
        if isinstance(kernel, Dispatcher)
    }


@pytest.mark.parametrize("ids", ["int", "string"])
def test_a_poll_of_empty_messages_and_one_that_may_be_written_have_nothing_compiled(ids: IdKind) -> None:
    content = {"bootstrap": "unused:9092", "topics": [{"name": "edges"}]}
    config = StreamConfig(graph="g", store="unused", kafka=content, snapshots={"interval_s": 60}, ids=ids)
    decoder = Decoder(config.kafka.topics[0], config)

    def decode(values: pa.LargeBinaryArray) -> None:
        offsets = pa.array(np.arange(len(values)))
        decoder.decode(RawBatch("edges", 0, 0, len(values), len(values), offsets, values))

    ends, text = np.array([0, 0, 2], np.int64), np.frombuffer(b"{}", np.uint8)
    decode(pa.array([b"{}", b"{"], pa.large_binary()))
    before = kinds_of_arrays(json_kernel)
    assert before["_scan"] >= 1
    decode(pa.array([b"", b""], pa.large_binary()))
    for data in (text, text.copy()):
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        decode(pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2, buffers))
    assert kinds_of_arrays(json_kernel) == before


def test_ids_out_of_memory_files_and_empty_ones_have_nothing_compiled() -> None:
    strings = new_dictionary("string")
    written = [
        pa.py_buffer(np.array([0, 1, 2], np.int32)),
        pa.py_buffer(np.frombuffer(b"ab", np.uint8).copy()),
    ]
    frozen = [pa.py_buffer(bytes(written[0])), pa.py_buffer(b"cd")]
    before: dict[str, int] = {}
    for buffers in (written, frozen):
        column = pa.chunked_array([pa.Array.from_buffers(pa.string(), 2, [None, *buffers])])
        strings.encode(column, column)
        before = before or kinds_of_arrays(string_dictionary)
    strings.extend(pa.array([], pa.string()))
    strings.extend(pa.Array.from_buffers(pa.string(), 2, [None, frozen[0], pa.py_buffer(b"ef")]))
    assert kinds_of_arrays(string_dictionary) == before
    assert strings.size == 6


def test_integer_ids_in_one_piece_and_in_several_have_nothing_compiled() -> None:
    """A batch of one message has its ids in one chunk, one of several messages may have them in more."""
    integers = new_dictionary("int")
    whole, pieces = pa.chunked_array([[1, 2, 3]]), pa.chunked_array([[4], [5, 6]])
    before: dict[str, int] = {}
    for src, dst in ((whole, pieces), (pieces, whole), (pieces, pieces), (whole, whole)):
        integers.encode(src, dst)
        before = before or kinds_of_arrays(dictionary)
    assert kinds_of_arrays(dictionary) == before


@pytest.mark.parametrize("buffer", [b"ab", bytearray(b"ab"), pa.py_buffer(b"ab"), b""])
def test_buffers_are_read_in_place_and_never_writable(buffer: bytes | bytearray | pa.Buffer) -> None:
    values = read_only(buffer, np.uint8)
    assert values.tobytes() == bytes(buffer)
    assert not values.flags.writeable
