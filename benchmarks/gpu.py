"""All that is to be known of a GPU, within eight minutes: python benchmarks/gpu.py (`make gpu`).

The most valuable parts come first, and each has a limit and a file in --out:

1. ``machine``: versions and hardware; if torch finds no CUDA device, or the project cannot be imported, nothing else is tried;
2. ``right``: every strategy with all its models comes to the host's numbers (gpu_right.py), while kernels are compiled beside;
3. ``speed``: ceilings of the machine, event models beside PyG, epochs beside plain PyTorch, transfers, memory (gpu_speed.py),
   steps with the key ``compile`` beside those without, on two cores;
4. ``ranks``: one to eight ranks with a core each (gpu_ranks.py) on the other cores meanwhile, then ``stream``: lanes and windows
   (lanes.py), and the demo with its embedded broker where Beam is installed.

A table of all rows comes last, in ``table.txt``, with the lines that begin with WRONG. One GPU is used, by one rank; ranks
beside each other are processes on cores, because NCCL refuses two on one GPU. --device cpu --small tries the command where
there is none.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
STRATEGIES = "sequential", "pac", "vertex", "whole", "snapshot", "group", "hybrid"


class Parts:
    """Runs parts of a whole that has a limit, each on cores of its own.

    Args:
        out: Folder of their output.
        most_s: Seconds of all together.
        environment: Of all.
    """

    def __init__(self, out: Path, most_s: float, environment: dict[str, str]) -> None:
        self._out, self._environment = out, environment
        self._ends_s, self._writing = time.monotonic() + most_s, Lock()
        self.cores = sorted(os.sched_getaffinity(0))

    def run(self, file: str, most_s: float, cores: Sequence[int], command: Sequence[str]) -> bool:
        """Run a part to its end or limit; whether it ended well. Its output is appended to a file once it ends."""
        began = time.monotonic()
        limit_s = min(most_s, self._ends_s - began)
        text, ended = f"== {' '.join(command)}\n", "no time left"
        if limit_s > 5:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            os.sched_setaffinity(process.pid, cores)  # before it has threads
            try:
                output, _ = process.communicate(timeout=limit_s)
                code = process.returncode
                ended = f"WRONG: {' '.join(command[1:])}: ended with {code}" if code else "ended with 0"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
                output, _ = process.communicate()
                ended = f"WRONG: {' '.join(command[1:])}: out of time"
            text += output
        text += f"== {ended} after {time.monotonic() - began:.0f} s\n"
        with self._writing, (self._out / f"{file}.txt").open("a", encoding="utf-8") as shown:
            shown.write(text)
        return ended == "ended with 0"

    def some(self, first: int, count: int) -> list[int]:
        """So many of the cores from one on, again from the first where there are fewer."""
        return sorted({self.cores[(first + at) % len(self.cores)] for at in range(count)})


def everything(parts: Parts, device: str, *, small: bool) -> None:
    """All parts but the first."""
    python, count = sys.executable, len(parts.cores)
    smaller = ["--small"] if small else []
    with ThreadPoolExecutor(len(STRATEGIES) + 2) as beside:
        warm, most_s = ["warm", "--json"], 900 if small else 150
        beside.submit(
            parts.run, "warm", most_s, parts.some(-1, 1), [python, "-m", "freshet_graph.trainer.cli", *warm]
        )
        if find_spec("apache_beam"):
            stream = [python, "-m", "freshet_graph.stream.start", *warm]
            beside.submit(parts.run, "warm", most_s, parts.some(-2, 1), stream)
        right = [python, str(HERE / "gpu_right.py"), "--device", device, "--strategy"]
        for at, strategy in enumerate(STRATEGIES):
            beside.submit(parts.run, "right", 900 if small else 130, parts.some(at, 1), [*right, strategy])
    few = 2 if count > 4 else 0  # of the cores for what has the GPU
    others = parts.some(few, count - few)
    with ThreadPoolExecutor(1) as beside:
        beside.submit(_on_cores, parts, others, smaller)
        speed = [python, str(HERE / "gpu_speed.py"), "--device", device, *smaller]
        limits = {"ceilings events": 120, "epochs transfer": 100, "memory": 90, "compiled": 150}
        for part, most_s in limits.items():
            parts.run("speed", 1200 if small else most_s, parts.some(0, 2), [*speed, *part.split()])


def _on_cores(parts: Parts, cores: list[int], smaller: list[str]) -> None:
    """What needs no GPU."""
    python = sys.executable
    ranks = ["--small", "--ranks", "1", "2"] if smaller else []
    parts.run("ranks", 900 if smaller else 170, cores, [python, str(HERE / "gpu_ranks.py"), *ranks])
    lanes = ["--pairs", "1e4", "--events", "2e4"] if smaller else ["--pairs", "1e6", "--events", "2e5"]
    kinds = ["--step-kinds", "hash", "--kinds", "hash", "distdy", "sep"]
    parts.run("stream", 90, cores[:2], [python, str(HERE / "lanes.py"), *lanes, *kinds])
    if find_spec("apache_beam") and not smaller:
        demo = ROOT / "deploy/demo/orchestrate.py"
        parts.run("stream", 100, cores, [python, str(demo), "--events", "120000", "--seconds", "25"])


def table(out: Path) -> str:
    """The rows and the wrongs of all parts."""
    found = []
    for name in ("machine", "right", "speed", "ranks", "stream"):
        path = out / f"{name}.txt"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        shown = [line for line in lines if line.startswith(("|", "WRONG", "== WRONG")) or "events/s" in line]
        wrong = sum("WRONG" in line for line in shown)
        once = dict.fromkeys(shown) if name == "right" else shown  # processes with one heading
        found += [f"\n{name}: {wrong} wrong", *once]
    return "\n".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="a few events: whether the command works")
    parser.add_argument("--out", type=Path, default=Path("gpu-output"))
    parser.add_argument("--most-s", type=float, help="seconds of all parts; default: 470, with --small 3600")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for each in given.out.glob("*.txt"):
        each.unlink()
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **threads, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    most_s = given.most_s or (3600 if given.small else 470)
    parts, began = Parts(given.out, most_s, environment), time.monotonic()
    well = parts.run("machine", 120, parts.cores, [sys.executable, str(HERE / "gpu_common.py"), given.device])
    print((given.out / "machine.txt").read_text(encoding="utf-8"), flush=True)
    if not well:
        print("The machine is not as expected, so nothing else was tried.")
        sys.exit(1)
    everything(parts, given.device, small=given.small)
    shown = f"{table(given.out)}\n\nafter {time.monotonic() - began:.0f} s\n"
    (given.out / "table.txt").write_text(shown, encoding="utf-8")
    print(shown)
    if "WRONG" in shown:
        sys.exit(1)


if __name__ == "__main__":
    main()
