"""How fast the trainer is on a device: python benchmarks/gpu_speed.py [PART …] [--device cpu] [--small].

- ``ceilings``: bytes a second of a copy on the device, products a second, bytes a second to it from page-locked and from
  ordinary memory, and what a launch and a question to the device take;
- ``events``: training steps of ``tgn`` and ``tgn-history`` beside PyG's building blocks (event_training.py) on the device, and
  on one core. Launches are kernels (on the processor: operations). The shares are of the ceilings: float operations of
  products, and bytes that all operations read and write, both counted by operation, over the step's time;
- ``epochs``: every snapshot model under ``whole``: made-up events with hubs among 20,000 nodes, 100,000 in each of nine
  snapshots, the last of which is learned again and again from the eight before; medians on the wall. Beside them WD-GCN of the
  same widths over the same snapshots, by ``torch.sparse`` in compressed rows and by PyG's ``GCNConv``, both with
  ``torch.nn.LSTM``;
- ``transfer``: a snapshot that changes by 5 and by 50 % on its way to the device, beside its coordinates and values from page-
  locked memory: until the host is free, until the device has the graph, and a copy of as many bytes alone;
- ``memory``: most memory of an epoch in blocks and in batches, and of PAC beside ``sequential``;
- ``compiled``: steps of event models in batches of 200 with the key ``compile`` beside plain ones: launches of a step (on the
  processor torch's operations that compute, with the compiled host kernels off, so that it is what a GPU is asked for), how many
  of them stand in compiled code (on the processor its loops, so a fresh folder of compiled code is used), milliseconds of a step,
  seconds until it was compiled, and processor seconds of this process and its compilers.

Everything is printed row by row.
"""

import functools
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import harness
import numpy as np
import torch
from event_training import Ours, Peer, has_peer
from gpu_common import (
    DEVICES,
    INTERVAL_US,
    event_store,
    fresh_peak,
    graph_events,
    graph_store,
    hardware,
    interactions,
    peak_mib,
    seconds_of,
    waits,
)
from harness import settled
from timeline import transfers
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from freshet_graph.trainer.nn.compiled import kernels_fit
from freshet_graph.trainer.ranks import Ranks

HOST = torch.device("cpu")
Train = Callable[[int, int, int], None]
"""Learn events from one number to another, so many at a time."""


class Ceilings:
    """What a device can do at most, as measured.

    Attributes:
        copy_bytes_s: Bytes read and written by a copy on the device.
        product_flop_s: Float operations of a large float32 product, without TF32.
    """

    def __init__(self, device: torch.device, *, small: bool) -> None:
        self._device, self._small = device, small
        x = torch.randn(1 << (20 if small else 28), device=device)
        y = torch.empty_like(x)
        self.copy_bytes_s = 2 * x.nbytes / seconds_of(lambda: y.copy_(x), device)
        self.product_flop_s = self._product(torch.float32, 256 if small else 4096)

    def rows(self) -> Iterator[list[str]]:
        """All of them, in words."""
        device, size = self._device, 256 if self._small else 8192
        yield ["copy on the device", f"{self.copy_bytes_s / 1e12:.2f} TB/s"]
        yield ["product, float32", f"{self.product_flop_s / 1e12:.1f} TFLOP/s"]
        yield ["product, bfloat16", f"{self._product(torch.bfloat16, size) / 1e12:.1f} TFLOP/s"]
        for mib in (1, 64):
            host = torch.randn(mib << 18)
            out = torch.empty_like(host, device=device)
            locked = host.pin_memory() if device.type == "cuda" else host
            for name, source in (("page-locked", locked), ("ordinary", host)):
                copied_s = seconds_of(
                    lambda source=source, out=out: out.copy_(source, non_blocking=True), device
                )
                yield [f"{mib} MiB to the device, {name} memory", f"{host.nbytes / copied_s / 1e9:.1f} GB/s"]
        number = torch.zeros(8, device=device)
        began = settled(device)
        for _ in range(2000):
            number.add_(1)
        yield ["a launch", f"{1e6 * (settled(device) - began) / 2000:.1f} µs"]
        yield [
            "a question to the device",
            f"{1e6 * seconds_of(lambda: float(number[0]), device, 500):.1f} µs",
        ]

    def _product(self, dtype: torch.dtype, size: int) -> float:
        a, b = (torch.randn(size, size, device=self._device, dtype=dtype) for _ in range(2))
        return 2 * size**3 / seconds_of(lambda: a @ b, self._device)


class Bytes(TorchDispatchMode):
    """Bytes of tensors that operations on a device take and give; views and other sides are left out."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._type, self.total = device.type, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [each for each in tree_leaves((args, kwargs, found)) if isinstance(each, Tensor)]
            self.total += sum(each.nbytes for each in tensors if each.device.type == self._type)
        return found


def learners(names: list[str], events: int, batch: int, device: torch.device) -> Iterator[tuple[str, Train]]:
    """Fresh ones on made-up events."""
    data = interactions(events)
    for name in names:
        if name == "PyG":
            yield name, Peer(data, 0, device).train
            continue
        ours = Ours(data, {}, "float32", 0, name=name, device=device)
        ours.start(batch)
        yield f"`{name}`", ours.train


def steps(device: torch.device, ceilings: Ceilings, *, small: bool) -> Iterator[list[str]]:
    """Rows of event models: milliseconds, kernels, launches, waits, memory, and shares of the ceilings."""
    warm, timed, looked_at = (2, 2, 1) if small else (10, 30, 4)
    names = ["tgn", "tgn-history", *(["PyG"] if has_peer() else [])]
    for batch in (30,) if small else (200, 600, 2000, 8000):
        events = (warm + timed + 3 * looked_at) * batch
        on_core = dict(learners(names, events, batch, HOST))
        for name, train in learners(names, events, batch, device):
            fresh_peak(device)
            train(0, warm * batch, batch)
            at, began = warm * batch, settled(device)
            train(at, at + timed * batch, batch)
            step_s, at, peak = (settled(device) - began) / timed, at + timed * batch, peak_mib(device)
            more = looked_at * batch
            with profile(activities=_activities(device)) as traced:
                train(at, at + more, batch)
                settled(device)
            kernels_s, launches = _kernels(traced, device)
            places: Counter[str] = Counter()
            with waits(device, places):
                train(at + more, at + 2 * more, batch)
            with FlopCounterMode(display=False) as products, Bytes(device) as moved:
                train(at + 2 * more, at + 3 * more, batch)
            core = on_core[name]
            core(0, warm * batch, batch)
            began = settled(HOST)
            core(warm * batch, (warm + looked_at) * batch, batch)
            core_s = (settled(HOST) - began) / looked_at
            seen = device.type != "cpu" or name == "PyG"  # our compiled kernels are not seen on the processor
            flop, size = (
                seen * each / looked_at / step_s for each in (products.get_total_flops(), moved.total)
            )
            yield [
                name, str(batch), f"{1000 * step_s:.2f}", f"{1000 * kernels_s / looked_at:.2f}",
                f"{launches / looked_at:.0f}", f"{places.total() / looked_at:.2f}" if device.type == "cuda" else "–",
                f"{batch / step_s:,.0f}", peak,
                f"{flop / ceilings.product_flop_s:.1%}" if flop else "–",
                f"{size / ceilings.copy_bytes_s:.1%}" if size else "–",
                f"{1000 * core_s:.2f}",
            ]  # fmt: skip


def _activities(device: torch.device) -> list[ProfilerActivity]:
    on_device = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return [ProfilerActivity.CPU, *on_device]


def _kernels(traced: profile, device: torch.device) -> tuple[float, int]:
    """Seconds and number of kernels and copies on the device; of the processor: of operations."""
    if device.type == "cuda":
        found = [each for each in traced.key_averages() if "CUDA" in str(each.device_type)]
        return sum(each.self_device_time_total for each in found) / 1e6, sum(each.count for each in found)
    found = [each for each in traced.key_averages() if each.key.startswith("aten::")]
    return sum(each.self_cpu_time_total for each in found) / 1e6, sum(each.count for each in found)


def graph_sizes(small: bool) -> tuple[int, int, int]:
    """Nodes, events of a snapshot, and snapshots of ``epochs``."""
    return (100, 300, 3) if small else (20_000, 100_000, 9)


def follow(store: Path, model: str, ranks: Ranks, window: int) -> tuple[Any, Any]:
    """A session under ``whole``, and the training examples of the lane's last snapshot."""
    session = harness.session_of(store, ranks, lane="hash", model=model, strategy="whole", window=window)
    return session, harness.examples_of(session, session.lane.manifests[:])


def epochs(device: str, *, small: bool, repeat: int = 5) -> Iterator[list[str]]:
    """Rows: model, median seconds of an epoch, and of the device's memory the peak."""
    with harness.scratch() as folder:
        store = graph_store(folder / "store", *graph_sizes(small))
        for name in harness.snapshot_models():
            ranks = Ranks.from_environment(device)  # type: ignore[arg-type]
            session, examples = follow(store, name, ranks, graph_sizes(small)[2] - 1)
            session.strategy.learn([examples], 0)  # compiles, and sends the horizon
            fresh_peak(ranks.device)
            taken = []
            for epoch in range(1, repeat + 1):
                began = time.perf_counter()
                session.strategy.learn([examples], epoch)  # has the losses on the host when it returns
                taken.append(time.perf_counter() - began)
            yield [f"`{name}`", f"{median(taken):.4f}", peak_mib(ranks.device)]
            session.close()


class PlainWdGcn(nn.Module):
    """WD-GCN as a programmer without this project writes it: a convolution in each snapshot, then an LSTM over them.

    Args:
        inputs: Width of the nodes' inputs.
        width: Of all rows above.
        layers: Convolutions, each with its LSTM.
        convolve: Makes a layer that maps rows and a snapshot's graph to rows.
    """

    def __init__(
        self, inputs: int, width: int, layers: int, convolve: Callable[[int, int], nn.Module]
    ) -> None:
        super().__init__()
        widths = [inputs, *[width] * layers]
        self.convolutions = nn.ModuleList(convolve(a, b) for a, b in itertools.pairwise(widths))
        self.recurrences = nn.ModuleList(nn.LSTM(width, width) for _ in range(layers))
        self.decoder = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor, graphs: list[Any], queries: Tensor) -> Tensor:
        rows = [x] * len(graphs)
        for convolve, recur in zip(self.convolutions, self.recurrences, strict=True):
            convolved = torch.stack([torch.relu(convolve(*at)) for at in zip(rows, graphs, strict=True)])
            rows = list(recur(convolved)[0])
        return self.decoder(rows[-1][queries].flatten(1)).squeeze(1)


class SparseProduct(nn.Module):
    """D^-½ (A + I) D^-½ X W by ``torch.sparse``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, operator: Tensor) -> Tensor:
        return operator @ self.weight(x)


def plain_epochs(device: torch.device, *, small: bool, repeat: int = 5) -> Iterator[list[str]]:
    """Rows of the peers: an epoch over the same snapshots, with as many questions."""
    nodes, *_, snapshots = graph_sizes(small)
    window, (src, dst, t) = snapshots - 1, graph_events(*graph_sizes(small))
    tau = t // INTERVAL_US
    with harness.scratch() as folder:
        session, _ = follow(graph_store(folder / "store", *graph_sizes(small)), "wdgcn", Ranks(), window)
        inputs, width = session.model.inputs, session.model.width
        layers = sum(type(each).__name__ == "Lstm" for each in session.model.stages)
        session.close()
    edges = []
    for number in range(window):  # a pair lives for two snapshots
        live = (tau == number) | (tau == number - 1)
        pairs = np.unique(np.sort(np.stack([src[live], dst[live]]), axis=0), axis=1)
        pairs = pairs[:, pairs[0] != pairs[1]]
        both = np.concatenate([pairs, pairs[::-1]], axis=1)
        edges.append(torch.from_numpy(both).to(device))
    newest = np.stack([src, dst])[:, tau == window]
    random = np.stack([newest[0], np.random.default_rng(1).permutation(newest[1])])
    queries = torch.from_numpy(np.concatenate([newest, random], axis=1).T.copy()).to(device)
    truth = torch.cat([torch.ones(newest.shape[1]), torch.zeros(newest.shape[1])]).to(device)
    x = torch.randn(nodes, inputs, device=device)
    kinds: list[tuple[str, Callable[[int, int], nn.Module], list[Any]]] = [
        ("WD-GCN by `torch.sparse`, CSR", SparseProduct, [_operator(each, nodes) for each in edges])
    ]
    if has_peer():
        from torch_geometric.nn import GCNConv

        kinds.append(("WD-GCN by `GCNConv`", lambda a, b: GCNConv(a, b, cached=False), edges))
    for name, convolve, graphs in kinds:
        model = PlainWdGcn(inputs, width, layers, convolve).to(device)
        optimiser = torch.optim.Adam(model.parameters(), fused=True)

        def epoch(model: nn.Module = model, optimiser: Any = optimiser, graphs: Any = graphs) -> None:
            optimiser.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x, graphs, queries), truth)
            loss.backward()
            optimiser.step()

        fresh_peak(device)
        yield [name, f"{seconds_of(epoch, device, repeat):.4f}", peak_mib(device)]


def _operator(edges: Tensor, nodes: int) -> Tensor:
    """D^-½ (A + I) D^-½ in compressed rows."""
    loops = torch.arange(nodes, device=edges.device)
    rows, columns = torch.cat([edges, torch.stack([loops, loops])], dim=1)
    scale = torch.bincount(rows, minlength=nodes).float().rsqrt()
    found = torch.sparse_coo_tensor(
        torch.stack([rows, columns]), scale[rows] * scale[columns], (nodes, nodes)
    )
    return found.coalesce().to_sparse_csr()


def memories(device: str, *, small: bool) -> Iterator[list[str]]:
    """Rows: strategy, model and blocks; most memory, and seconds, of an epoch."""
    sizes = (100, 300, 5) if small else (50_000, 200_000, 17)
    with harness.scratch() as folder:
        graph = graph_store(folder / "graph", *sizes)
        events = event_store(folder / "events", 900 if small else 60_000)
        blocks = (1, 2, 4) if small else (1, 2, 4, 8)
        for model in ("wdgcn", "tgcn"):
            for strategy, numbers in (("whole", (1,)), ("snapshot", blocks), ("hybrid", (1,))):
                keys = {"lane": "hash", "strategy": strategy, "model": model, "horizon": sizes[-1] - 1}
                yield from _memory(graph, device, keys, numbers)
        for strategy in ("sequential", "pac"):
            yield from _memory(events, device, {"lane": "sep", "strategy": strategy, "model": "tgn"}, (1,))


def _memory(store: Path, device: str, keys: dict[str, Any], blocks: tuple[int, ...]) -> Iterator[list[str]]:
    ranks, strategy = Ranks.from_environment(device), keys["strategy"]  # type: ignore[arg-type]
    session = harness.session_of(store, ranks, **keys, window=2)
    for manifest in session.lane.manifests[:]:
        examples = harness.examples_of(session, [manifest])
    for number in blocks:
        if strategy == "snapshot":
            session.strategy.number_of_blocks = number
        session.strategy.learn([examples], 0)
        fresh_peak(ranks.device)
        began = settled(ranks.device)
        for epoch in (1, 2, 3):
            session.strategy.learn([examples], epoch)
        seconds = (settled(ranks.device) - began) / 3
        shown = f", blocks {number}" if strategy == "snapshot" else ""
        yield [f"`{strategy}`, `{keys['model']}`{shown}", peak_mib(ranks.device), f"{seconds:.3f}"]
    session.close()


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
    with profile(activities=_activities(ours.device)) as traced:
        ours.train(begin, begin + count * batch, batch)
        settled(ours.device)
    if ours.device.type == "cuda":
        return _kernels(traced, ours.device)[1] / count
    return sum(_of(event) for event in traced.events() if event.cpu_parent is None) / count


def _of(event: Any) -> int:
    """Launches of an operation with all that it calls; those over many weights are one on a GPU."""
    if event.name.startswith(("aten::_foreach", "aten::_fused")):
        return 1
    return sum(_of(child) for child in event.cpu_children) or int(computes(event.name))


def compiled_steps(device: torch.device, *, small: bool) -> Iterator[list[str]]:
    """Rows of some models. On the processor milliseconds are its own, which other work there does not change."""
    from torch._inductor import metrics
    from torch._inductor.utils import fresh_cache

    on_cpu = device.type == "cpu"
    clock = time.process_time if on_cpu else functools.partial(settled, device)
    names, batch, count = (
        (("tgn",), 40, 2) if small else (("tgn", "tgn-history", "graphmixer", "dygformer"), 200, 20)
    )
    data = interactions((2 * count + 3) * batch)
    for name in names:
        plain, compiled = (Ours(data, {}, "float32", 0, name=name, device=device) for _ in range(2))
        plain.start(batch)
        metrics.reset()
        used = sum(os.times()[:4])
        with fresh_cache():
            taken = harness.seconds_of(lambda c=compiled: c.start(batch, compiled=True))
        used, within = sum(os.times()[:4]) - used, metrics.generated_kernel_count
        step_ms = []
        for ours in (plain, compiled):
            ours.train(0, 3 * batch, batch)
            steps_s = [
                harness.seconds_of(lambda o=ours, at=at * batch: o.train(at, at + batch, batch), clock)
                for at in range(3, 3 + count)
            ]
            step_ms.append(f"{1000 * median(steps_s):.1f}")
        outside = launches(compiled, (3 + count) * batch, count, batch)
        users = [each for each in sys.modules.values() if getattr(each, "kernels_fit", None) is kernels_fit]
        for each in users:
            patch.object(each, "kernels_fit", lambda _: False).start()
        of_plain = launches(plain, (3 + count) * batch, count, batch)
        patch.stopall()
        outside -= 0 if on_cpu else within
        counts = f"{of_plain:.0f}", f"{outside + within:.0f}", str(within)
        yield [f"`{name}`", *counts, *step_ms, f"{taken:.0f}", f"{used:.0f}"]


def main() -> None:
    given = harness.options(__doc__, {"parts": []}, quiet=True, device=DEVICES, small=False)
    device, small = torch.device(given.device), given.small
    torch.set_num_threads(1)
    print(hardware(given.device), flush=True)
    ceilings = functools.cache(lambda: Ceilings(device, small=small))
    changed = "changed | host, ms | there, ms | MB | a copy of them, ms | times faster than int64 COO"
    tables: dict[str, dict[str, Callable[[], Iterator[list[str]]]]] = {
        "ceilings": {"at most | measured": lambda: ceilings().rows()},
        "events": {
            "model | events a step | ms a step | of it kernels | launches | waits | events/s | MiB | of products"
            " | of copies | one core, ms": lambda: steps(device, ceilings(), small=small)
        },
        "epochs": {
            "an epoch of `whole` | s | MiB": lambda: epochs(given.device, small=small),
            "an epoch of a peer | s | MiB": lambda: plain_epochs(device, small=small),
        },
        "transfer": {
            f"5 % {changed}": lambda: transfers(device, small=small, length=20),
            f"50 % {changed}": lambda: transfers(device, small=small, length=2),
        },
        "memory": {"memory of | MiB | s an epoch": lambda: memories(given.device, small=small)},
        "compiled": {
            "model | launches a step | with `compile` | of them compiled | ms a step | with `compile` | s to compile"
            " | processor s": lambda: compiled_steps(device, small=small)
        },
    }
    for part in harness.chosen(given.parts, tables):
        for titles, rows in tables[part].items():
            harness.table(titles, rows(), keep_going=True)


if __name__ == "__main__":
    main()
