"""What jobs of crash tests load and compile, done once by the server that forks them, and not by tests that name them."""

import tempfile
from pathlib import Path

from crash_job import seal_everything
from lane_crash_job import catch_up
from lane_stream import lane, make_store

with tempfile.TemporaryDirectory() as folder:
    seal_everything(Path(folder), "")

with tempfile.TemporaryDirectory() as folder:
    make_store(Path(folder), lane("distdy"), lane("sep"))
    for name in ("distdy", "sep"):
        catch_up(Path(folder), lane(name), "")
