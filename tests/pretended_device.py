"""A CUDA device on a machine without one: tensors say that they are on it, and may not meet those of the CPU.

The numbers stay where they are, so results are those of the CPU.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
DEVICE, SET_DATA = Tensor.device.__get__, Tensor.data.__set__

# What copies from one device to another, or asks whether it could, and so may be given tensors of both.
COPIES = {
    Tensor.copy_,
    Tensor.to,
    Tensor.cpu,
    Tensor.type_as,
    SET_DATA,
    torch._has_compatible_shallow_copy_type,
}
READS = {DEVICE: lambda device: device, Tensor.is_cuda.__get__: lambda device: device == CUDA}


class PretendedDevice(TorchFunctionMode):
    """Refuses, as CUDA does, every call that is given tensors of two devices; scalars of the CPU may join."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in READS:
            return READS[func](device_of(args[0]))
        given = list(tensors((args, kwargs)))
        if func not in COPIES:
            refuse_two_devices(func, args, given)
        device = next((device_of(tensor) for tensor in given if tensor.ndim), None)
        if device is None:
            device = max(map(device_of, given), key=lambda one: one == CUDA, default=CPU)
        if func is Tensor.numpy and device == CUDA and not kwargs.get("force"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy: use force=True")
        args, asked = asked_device(func, args, kwargs)
        if asked is not None and asked.type == "cuda" and kwargs.get("generator") is not None:
            raise RuntimeError(f"{func.__name__}: expected a generator of cuda, found one of the CPU")
        result = func(*args, **kwargs)
        if func == SET_DATA:
            mark(args[0], device_of(args[1]))
            return result
        target = asked or (CPU if func is Tensor.cpu else device)
        if func in (Tensor.to, Tensor.cpu) and result is args[0] and target != device:
            result = result.clone()
        for tensor in tensors(result):
            mark(tensor, target)
        return result


def device_of(tensor: Tensor) -> torch.device:
    """Where a tensor says that it is."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return CUDA if tensor.__dict__.get("is_pretended") else DEVICE(tensor)


def mark(tensor: Tensor, device: torch.device) -> None:
    tensor.__dict__["is_pretended"] = device.type == "cuda"


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in arguments or a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (found for item in value.values() for found in tensors(item))
    elif isinstance(value, tuple | list):
        yield from (found for item in value for found in tensors(item))


def refuse_two_devices(func: Callable[..., Any], args: tuple[Any, ...], given: list[Tensor]) -> None:
    if func is Tensor.__getitem__ and device_of(args[0]) == CUDA:
        return  # indices may be those of the CPU
    if len({device_of(tensor) for tensor in given if tensor.ndim}) > 1:
        raise RuntimeError(
            f"{func.__name__}: expected all tensors to be on the same device, found cpu and cuda:0"
        )


def asked_device(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], torch.device | None]:
    """The positional arguments as the CPU takes them, and the device that a call names."""
    asked = kwargs.get("device")
    if func is Tensor.to and len(args) > 1:
        asked = device_of(args[1]) if isinstance(args[1], Tensor) else args[1]
    if not isinstance(asked, str | torch.device):
        return args, None
    asked = torch.device(asked)
    if asked.type == "cuda":
        if "device" in kwargs:
            kwargs["device"] = CPU
        elif not isinstance(args[1], Tensor):
            args = (args[0], CPU, *args[2:])
    return args, asked


@contextmanager
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with one CUDA device, for as long as the with-block runs."""
    with monkeypatch.context() as patched, PretendedDevice():
        patched.setattr(torch.cuda, "is_available", lambda: True)
        yield
