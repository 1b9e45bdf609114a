"""Arrays with a row a dense id: growing keeps what is there and costs no copy while there is room."""

import numpy as np
import pytest

from stream.arrays.growing import grown


@pytest.mark.parametrize(("shape", "fill"), [((), -1), ((2,), 0), ((3,), 7)])
def test_growing_keeps_the_rows_and_fills_new_ones(shape, fill):
    array, expected = np.empty((0, *shape), np.int32), []
    for rows in (1, 2, 3, 10, 10, 4, 33):
        array = grown(array, rows, fill)
        expected += [fill] * (rows - len(expected))
        assert array.shape == (len(expected), *shape)
        assert array.reshape(len(expected), -1)[:, 0].tolist() == expected
        array[-1] = expected[-1] = 5


def test_an_array_grows_within_its_room_without_moving():
    array = grown(np.zeros(0), 100)
    begin = array.ctypes.data
    array = grown(array, 101)  # room for twice as many from here on
    moved = array.ctypes.data
    for rows in range(102, 200):
        array = grown(array, rows)
        assert array.ctypes.data == moved != begin


def test_an_array_that_is_a_view_of_something_else_is_not_grown_over_it():
    """As restored states are: columns reshaped, whose base has another shape."""
    words = np.arange(6).reshape(3, 2)
    assert grown(words, 5).tolist() == [[0, 1], [2, 3], [4, 5], [0, 0], [0, 0]]
    assert words.tolist() == [[0, 1], [2, 3], [4, 5]]
    other = np.arange(10)
    assert grown(other[2:4], 6).tolist() == [2, 3, 0, 0, 0, 0]
    assert other.tolist() == list(range(10))
    assert grown(other[:4], 6, -1).tolist() == [0, 1, 2, 3, -1, -1]
