"""Write a golden archive: a store and checkpoints of a commit, which later releases must open.

    python deploy/release/golden.py COMMIT tests/golden/NAME.tar.gz

A release makes one of its own commit. ``tests/integration/test_golden.py`` opens all of them.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from small_trainers import EVENT_MODEL, config_for, run
from trainer_streams import make_lane

folder = Path(sys.argv[1])
make_lane(folder / "store")
run(config_for(folder, checkpoint=str(folder / "snapshot-model"), keep_checkpoints=1), snapshots=4)
run(config_for(folder, checkpoint=str(folder / "event-model"), keep_checkpoints=1, **EVENT_MODEL), snapshots=4)
"""


def main() -> None:
    """Make the archive in a checkout of the commit, by its own code."""
    commit, archive = sys.argv[1], Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        tree, made = Path(folder) / "tree", Path(folder) / "made"
        made.mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, tree], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--detach", commit], cwd=tree, check=True)
        path = os.pathsep.join([str(tree), str(tree / "tests" / "support")])
        subprocess.run(
            [sys.executable, "-c", PROGRAM, made],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": path},
            check=True,
        )
        archive.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "--create", "--gzip", "--file", archive, "--directory", made, "."], check=True)


if __name__ == "__main__":
    main()
