"""Joining the ranks of a launcher, each with a device of its own or all on the host."""

import os
import socket
from datetime import timedelta
from functools import cache
from typing import Literal

import psutil
import structlog
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # its defaults keep the group that exists when it is first imported: none yet
from torch._C._distributed_c10d import PrefixStore, TCPStore

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.wire.link import ProcessLink, peers_may_be_lost

Device = Literal["auto", "cpu", "cuda"]

TIMEOUT_S = 600.0
"""A peer that does not answer for so long counts as dead."""
PORT = 29_500
"""Of rank 0's store, unless ``MASTER_PORT`` says otherwise; torchrun's default."""

log = structlog.get_logger()


def join(
    device: Device, timeout_s: float, threads: int | None = None
) -> tuple[ProcessLink | None, torch.device]:
    """Join the ranks that torchrun started, or those that the environment describes: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``.

    Without ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``, this rank is the only one of its host.

    Args:
        device: ``auto``: CUDA if every rank of this machine has a device of its own, else the CPU.
        timeout_s: Seconds after which a peer counts as dead.
        threads: See ``Ranks.from_environment``.

    Returns:
        The link to the other ranks, None for a rank alone; and its device.

    Raises:
        Failure: ``cuda`` is asked for, and there are fewer devices than ranks on this machine.
    """
    place = _place(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if threads is not None or "OMP_NUM_THREADS" not in os.environ:  # which torch obeys
        torch.set_num_threads(threads or _cores_of(_local_ranks()))
    if "RANK" not in os.environ:
        return None, place
    if (interface := _interface_to(os.environ["MASTER_ADDR"])) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    with peers_may_be_lost(rank):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
            store=shared_store("attempt", timeout_s),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
    return ProcessLink(rank, size, timeout_s=timeout_s), place


def shared_store(name: str, timeout_s: float) -> PrefixStore:
    """A new client of the ranks' store, which is torchrun's or that of rank 0's process; waits until it is there.

    Each attempt has its own key space: after the death of a rank torchrun starts all again on the same store, and keys of
    the former attempt would let the new one meet dead peers.

    Args:
        name: Of the key space.
        timeout_s: Of each later call.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ.get("MASTER_PORT", PORT))
    if os.environ.get("RANK") == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        _serve_store(address, port)
    store = TCPStore(address, port, world_size=None, is_master=False, timeout=timedelta(seconds=TIMEOUT_S))
    store.set_timeout(timedelta(seconds=timeout_s))
    return PrefixStore(f"{name}{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


@cache
def _serve_store(address: str, port: int) -> TCPStore:
    """The store that this process serves to all ranks until it ends."""
    return TCPStore(address, port, world_size=None, is_master=True, wait_for_workers=False)


def _place(device: Device) -> torch.device:
    """This rank's device. NCCL allows one rank per device, so each has its own, or all of a machine have none."""
    devices = 0 if device == "cpu" else torch.cuda.device_count()
    local_ranks = _local_ranks()
    if device == "cuda" and not devices:
        raise Failure("key device: cuda is set, but torch finds no CUDA device here. Set auto or cpu")
    if device == "cuda" and local_ranks > devices:
        raise Failure(
            f"key device: cuda is set, but {local_ranks} ranks share {devices} CUDA device(s) here. Start at most {devices} on "
            "this machine, or set cpu"
        )
    if local_ranks > devices:
        if devices and os.environ.get("LOCAL_RANK", "0") == "0":
            log.warning(
                "all ranks are on the CPU, because each would need a CUDA device of its own. Start at most as many ranks as "
                "there are devices to train on them",
                ranks=local_ranks,
                devices=devices,
            )
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def _local_ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _interface_to(address: str) -> str | None:
    """The network interface by which an address is reached; None if it cannot be seen.

    gloo takes the one of the host's name instead, which is often a loopback address that no other host reaches.
    """
    try:
        family, kind, protocol, _, remote = socket.getaddrinfo(address, PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(remote)  # sends nothing
            local = probe.getsockname()[0]
    except OSError:
        return None
    interfaces = psutil.net_if_addrs().items()
    return next(
        (name for name, addresses in interfaces if local in {one.address.split("%")[0] for one in addresses}),
        None,
    )


def _cores_of(local_ranks: int) -> int:
    """This rank's share of the cores that the process may use; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // local_ranks)
