"""A training step with the key ``compile`` beside the plain one: python benchmarks/compiled_step.py [--device cpu] [--small].

Event models learn made-up events in batches of 200 under ``sequential``, float32, in their default widths. A row is printed
for each when it is known:

- launches of a step without the key: on a GPU its kernels and copies; on the processor torch's operations that compute (no
  views, no allocations), with the compiled host kernels off, so that it is what a GPU is asked for;
- launches with the key, and how many of them stand in compiled code. On the processor these are loops, which torch counts
  when it compiles them: a fresh folder of compiled code is used;
- milliseconds of a step, without the key (on the processor: with the host kernels) and with it;
- seconds until the step was compiled, and processor seconds of this process and its compilers.
"""

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import harness
import torch
from event_training import Ours
from gpu_common import DEVICES, hardware, interactions
from harness import settled
from torch.profiler import ProfilerActivity, profile

from trainer.nn.compiled import kernels_fit

MODELS = ("tgn", "tgn-history", "graphmixer", "dygformer")
COMPUTES_NOT = (
    "view", "as_strided", "slice", "select", "expand", "detach", "alias", "transpose", "unsqueeze", "squeeze", "reshape",
    "permute", "resolve_conj", "resolve_neg", "lift_fresh", "empty", "unbind", "split", "chunk", "narrow", "diagonal",
    "result_type", "to", "contiguous", "unsafe_view", "unsafe_split", "numpy_T", "t", "resize_", "set_", "item",
)  # fmt: skip


def computes(name: str) -> bool:
    """Whether an operation launches something on a GPU."""
    plain = name.removeprefix("aten::").removeprefix("_")
    return name.startswith("aten::") and not any(
        plain == each or plain.startswith(f"{each}_") for each in COMPUTES_NOT
    )


def launches(ours: Ours, begin: int, count: int, batch: int) -> float:
    """Launches of a step outside of the processor's compiled code."""
    on_gpu = ours.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as traced:
        ours.train(begin, begin + count * batch, batch)
        settled(ours.device)
    if on_gpu:
        return sum(each.count for each in traced.key_averages() if "CUDA" in str(each.device_type)) / count
    return sum(_of(event) for event in traced.events() if event.cpu_parent is None) / count


def _of(event: Any) -> int:
    """Launches of an operation with all that it calls; those over many weights are one on a GPU."""
    if event.name.startswith(("aten::_foreach", "aten::_fused")):
        return 1
    return sum(_of(child) for child in event.cpu_children) or int(computes(event.name))


def milliseconds(ours: Ours, begin: int, count: int, batch: int) -> float:
    """The median step; on the processor its own time, which other work there does not change."""
    found = []
    for number in range(count):
        began = _now(ours.device)
        ours.train(begin + number * batch, begin + (number + 1) * batch, batch)
        found.append(1000 * (_now(ours.device) - began))
    return statistics.median(found)


def _now(device: torch.device) -> float:
    return settled(device) if device.type == "cuda" else time.process_time()


def rows(names: Sequence[str], device: torch.device, batch: int, count: int) -> Iterator[list[str]]:
    """Rows of some models."""
    from torch._inductor import metrics
    from torch._inductor.utils import fresh_cache

    data = interactions((2 * count + 3) * batch)
    for name in names:
        plain, compiled = (Ours(data, {}, "float32", 0, name=name, device=device) for _ in range(2))
        plain.start(batch)
        metrics.reset()
        began, used = time.perf_counter(), sum(os.times()[:4])
        with fresh_cache():
            compiled.start(batch, compiled=True)
        taken, used = time.perf_counter() - began, sum(os.times()[:4]) - used
        within = metrics.generated_kernel_count
        for ours in (plain, compiled):
            ours.train(0, 3 * batch, batch)
        step_ms = [milliseconds(ours, 3 * batch, count, batch) for ours in (plain, compiled)]
        found = [launches(compiled, (3 + count) * batch, count, batch)]
        users = [each for each in sys.modules.values() if getattr(each, "kernels_fit", None) is kernels_fit]
        for each in users:
            patch.object(each, "kernels_fit", lambda _: False).start()
        found.append(launches(plain, (3 + count) * batch, count, batch))
        patch.stopall()
        outside = found[0] if device.type == "cpu" else found[0] - within
        yield [
            f"`{name}`", f"{found[1]:.0f}", f"{outside + within:.0f}", str(within), f"{step_ms[0]:.1f}",
            f"{step_ms[1]:.1f}", f"{taken:.0f}", f"{used:.0f}",
        ]  # fmt: skip


def main() -> None:
    given = harness.options(__doc__, device={**DEVICES, "default": "cpu"}, small=False)
    torch.set_num_threads(1)
    print(hardware(given.device), flush=True)
    titles = "model | launches a step | with `compile` | of them compiled | ms a step | with `compile`"
    names, batch, count = (MODELS[:1], 40, 2) if given.small else (MODELS, 200, 20)
    found = rows(names, torch.device(given.device), batch, count)
    harness.table(f"{titles} | s to compile | processor s", found, keep_going=True)


if __name__ == "__main__":
    main()
