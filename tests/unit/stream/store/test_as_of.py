"""A moment as programs give it: a number, a time, a text; anything else is a sentence about what is taken."""

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.stream.store.as_of import AsOf

NOON_US = 1714564800_000000


@pytest.mark.parametrize("moment", [18262, np.int32(18262), "18262", AsOf(tau=18262)])
def test_a_whole_number_is_a_snapshot(moment):
    assert AsOf.of(moment) == AsOf(tau=18262)


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2024, 5, 1, 12, tzinfo=UTC),
        datetime(2024, 5, 1, 12),  # noqa: DTZ001  UTC
        datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        pd.Timestamp("2024-05-01T12:00"),
        pd.Timestamp("2024-05-01T14:00", tz="Europe/Berlin"),
        "2024-05-01T12:00",
        "@1714564800",
        AsOf(t_us=NOON_US),
    ],
)
def test_a_time_is_utc_or_of_its_zone(moment):
    assert AsOf.of(moment) == AsOf(t_us=NOON_US)


def test_a_time_is_exact_to_the_microsecond():
    assert AsOf.of(pd.Timestamp("2024-05-01T12:00:00.123457")).t_us == NOON_US + 123457


@pytest.mark.parametrize("moment", [1.5, True, None, date(2024, 5, 1), pd.NaT, "yesterday", [3]])
def test_anything_else_is_a_sentence_about_what_is_taken(moment):
    with pytest.raises(FreshetError, match=r"^as_of takes a snapshot such as 18262, a datetime, .* found "):
        AsOf.of(moment)
