"""A pretended GPU with real numbers: its tensors say that they are elsewhere, and their numbers are on the host.

As on CUDA an operation on tensors of both sides is an error, apart from copies, indices and scalars of the host. What would
make the host wait is counted by its place in the code. So training on it has to come to the same numbers as on the host.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from freshet_graph import trainer
from freshet_graph.trainer.models.interface import Model

FAR = torch.device("meta")
"""What far tensors say: torch keeps no numbers there, so a tensor that is not ours cannot be read by accident."""

SIZED_BY_NUMBERS = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
READ = {"_local_scalar_dense", "equal", "is_nonzero", "allclose"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIED = {"_to_copy", "copy_"}
PACKAGE = Path(trainer.__file__).parent


class FarTensor(Tensor):
    """A tensor of the pretended device.

    Args:
        numbers: On the host.
    """

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "FarTensor":
        found = Tensor._make_wrapper_subclass(
            cls, numbers.size(), strides=numbers.stride(), storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype, layout=numbers.layout, device=FAR,
        )  # fmt: skip
        found.numbers = numbers
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _operated(func, args, kwargs or {})

    def data_ptr(self) -> int:
        """Its place in memory: two views of one storage are told apart by it."""
        return self.numbers.data_ptr()

    def record_stream(self, _: Any) -> None:
        """Nothing: there are no streams."""

    def tolist(self) -> Any:
        """Its numbers, for which the host waits."""
        _waited()
        return self.numbers.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"far {self.numbers!r}"


class FarThread(TorchDispatchMode):
    """Within: this thread makes tensors on ``FAR``, and copies them there, which no far tensor would see."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _operated(func, args, kwargs or {})


class TwoDevicesError(RuntimeError):
    """An operation has tensors of both sides."""


class _Waits(threading.local):
    """How often the host waited in this thread, by file and function of ``trainer``."""

    def __init__(self) -> None:
        self.by_place: Counter[str] = Counter()


_WAITS = _Waits()


@contextmanager
def far_device() -> Iterator[None]:
    """Within: models can move to ``FAR``, and this thread can; other threads need a ``FarThread``."""
    with ExitStack() as stack:
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        adam = sys.modules[torch.optim.Adam.__module__]
        monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda weight: None)
        monkeypatch.setattr(Model, "to", _moved)
        stack.enter_context(FarThread())
        yield


def _moved(model: Model, device: torch.device) -> Model:
    """Weights and buffers on a device, as ``Module.to`` moves them: a parameter cannot change its type in place."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        moved: Model = model._apply(lambda tensor: tensor.to(device, non_blocking=True))
        return moved
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def _operated(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation's result, of the side on which it ran."""
    name = func._schema.name.split("::")[1]
    tensors: list[Tensor] = []
    _replaced((args, kwargs), tensors.append)
    far = [each for each in tensors if isinstance(each, FarTensor)]
    target = kwargs.get("device")
    made_far = bool(far) if target is None else torch.device(target) == FAR
    if not far and not made_far:
        return func(*args, **kwargs)
    if name in COPIED:
        made_far = made_far if name == "_to_copy" else isinstance(args[0], FarTensor)
        source = args[0] if name == "_to_copy" else args[1]
        if isinstance(source, FarTensor) != made_far and not (
            made_far and (kwargs.get("non_blocking") or (name == "copy_" and not source.dim()))
        ):
            _waited()
    elif far:
        _check(name, args, tensors)
    if name in SIZED_BY_NUMBERS | READ or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        _waited()
    ours = {id(each.numbers): each for each in far}
    args, kwargs = _replaced((args, kwargs), _numbers)
    if made_far and target is not None:
        kwargs["device"] = torch.device("cpu")
    found = func(*args, **kwargs)

    if not made_far or name in READ:
        return found
    return _replaced(found, lambda made: ours.get(id(made)) if id(made) in ours else FarTensor(made))


def _check(name: str, args: Any, tensors: list[Tensor]) -> None:
    """Raise if an operation has tensors of both sides."""
    if name in INDEXED:
        table, indices, *rest = args
        for index in (each for each in indices if each is not None):
            if isinstance(index, FarTensor) != isinstance(table, FarTensor):
                if isinstance(index, FarTensor):
                    raise TwoDevicesError(f"{name}: an index of the device in a table of the host")
                _waited()  # torch copies it, from pages that are not locked
            if index.dtype == torch.bool and isinstance(index, FarTensor):
                _waited()
        tensors = [table, *(each for each in rest if isinstance(each, Tensor) and each.dim())]
    scalars_too = name in {"cat", "stack"} or name.startswith("_foreach")
    host = [each for each in tensors if not isinstance(each, FarTensor) and (each.dim() or scalars_too)]
    if host and name != "_foreach_mul_":
        raise TwoDevicesError(f"{name}: {[tuple(each.shape) for each in host]} of the host beside the device")


def _replaced(value: Any, replace: Callable[[Tensor], Any]) -> Any:
    """What an operation takes or gives, with other tensors. torch's ``tree_map`` takes seven times as long."""
    if isinstance(value, Tensor):
        return replace(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_replaced(each, replace) for each in value])
    if isinstance(value, dict):
        return {key: _replaced(each, replace) for key, each in value.items()}
    return value


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.numbers if isinstance(tensor, FarTensor) else tensor


def _waited() -> None:
    _WAITS.by_place[_place(sys._getframe())] += 1


def _place(frame: FrameType | None) -> str:
    """The innermost function of ``trainer`` that asks."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(PACKAGE):
            return f"{file.relative_to(PACKAGE)}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return "elsewhere"


def waits_of(work: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """What some work returns, and how often the host waited in it by place."""
    before = _WAITS.by_place.copy()
    found = work()
    return found, _WAITS.by_place - before
