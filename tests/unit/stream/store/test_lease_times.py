"""How long a lease lasts that its holder no longer renews."""

import json
import threading
import time
from dataclasses import replace

import pytest
from other_machine import elsewhere
from s3_server import S3Server

from stream.store.files.sweep import lock_folder
from stream.store.places import lease as lease_module
from stream.store.places.bucket import Bucket
from stream.store.places.object_path import ObjectPath
from stream.store.places.place import place_of


@pytest.fixture
def bucket(s3: S3Server) -> ObjectPath:
    place = place_of(s3.store())
    assert isinstance(place, ObjectPath)
    return place


@pytest.mark.parametrize(
    ("held_s", "own_s", "lasts_s"),
    [(60, 1, 60), (1, 60, 60), (None, 5, 5), ("60", 5, 5), (float("inf"), 5, 5), (float("nan"), 5, 5)],
    ids=["the holder's", "the taker's", "of an earlier release", "a word", "for ever", "no number"],
)
def test_of_two_lease_times_the_longer_holds(
    held_s: object, own_s: float, lasts_s: float, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = elsewhere(monkeypatch)
    address = bucket.bucket.address
    holds = held_s if isinstance(held_s, int) else 1
    silent = lock_folder(ObjectPath(Bucket(replace(address, lease_s=holds)), bucket.key), "silent")
    silent.fall_silent()  # type: ignore[attr-defined]
    back()
    said = json.loads((bucket / "lock").read_bytes())
    assert said["lease_s"] == holds
    if held_s is None:
        del said["lease_s"]
    else:
        said["lease_s"] = held_s
    (bucket / "lock").put(json.dumps(said).encode())
    now_s = [0.0]
    monkeypatch.setattr(lease_module, "now_s", lambda: now_s[0])
    mine, sleep = threading.get_ident(), time.sleep

    def pass_by(s: float) -> None:
        if threading.get_ident() == mine:
            now_s[0] += s
        else:
            sleep(s)

    monkeypatch.setattr(time, "sleep", pass_by)
    second = lock_folder(ObjectPath(Bucket(replace(address, lease_s=own_s)), bucket.key), "second")
    assert lasts_s <= now_s[0] < lasts_s + 2
    second.release()
