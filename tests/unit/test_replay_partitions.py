"""Where replay puts an event: by the hash of its source, the same everywhere."""

import numpy as np
import pyarrow as pa

from stream.kafka.producer import partition_of


def test_one_source_is_always_in_one_partition_whatever_the_others_are() -> None:
    ids = pa.array([5, 9, 5, 7, 9, 5])
    together = partition_of(ids, 4)
    for value in (5, 7, 9):
        alone = partition_of(pa.array([value]), 4)[0]
        assert set(together[np.array(ids) == value]) == {alone}


def test_sources_spread_evenly() -> None:
    counts = np.bincount(partition_of(pa.array(np.arange(8_000)), 4), minlength=4)
    assert counts.min() > 1_800
    names = pa.array([f"card:{i}" for i in range(8_000)])
    assert np.bincount(partition_of(names, 4), minlength=4).min() > 1_800


def test_an_id_hashes_as_its_text_so_that_a_source_keeps_its_partition_when_ids_become_strings() -> None:
    numbers = np.arange(100)
    assert np.array_equal(partition_of(pa.array(numbers), 8), partition_of(pa.array(map(str, numbers)), 8))
