"""Arrays with a row per dense id, and room for more."""

import numpy as np
import pytest

from freshet_graph.stream.arrays.growing import with_room


@pytest.mark.parametrize(("shape", "fill"), [((), -1), ((2,), 0), ((3,), 7)])
def test_an_array_with_more_room_keeps_its_rows_and_fills_all_others(shape, fill):
    array, written = np.empty((0, *shape), np.int32), 0
    for rows in (1, 2, 3, 10, 10, 4, 33, 34):
        array = with_room(array, rows, fill)
        assert len(array) >= rows
        assert array.dtype == np.int32
        assert array.shape[1:] == shape
        assert (array[:written] == 5).all()
        assert (array[written:] == fill).all()
        written = rows
        array[:written], array[written:] = 5, fill


def test_an_array_moves_once_per_half_of_its_rows():
    array = with_room(np.zeros(100), 101)
    assert len(array) == 150
    assert with_room(array, 150) is array
    assert len(with_room(array, 400)) == 400
