"""RemoteModule: a module on another worker that is used like a local one.

    RemoteModule("worker1/cpu", Linear, (20, 30))  --remote--> Linear(20, 30) on worker1
    module(x), module.forward_async(x)             --call-->   its forward there; gradients flow back

A drop-in for `torch.distributed.nn.RemoteModule`. It can be sent to other workers, in calls only: a reference to the
module is sent. Methods that need the parameters or layers themselves raise ValueError. TorchScript interfaces are not
supported.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, NoReturn

import torch
from torch.distributed.remote_device import _remote_device
from torch.futures import Future
from torch.nn.parameter import Parameter

from . import agent as _agent
from . import current as _process
from .calls import remote, rpc_async, rpc_sync
from .messages import pickling
from .references.proxy import method_of
from .references.rref import RRef

# The attributes of a RemoteModule that are sent.
_REMOTE_MODULE_PICKLED_ATTRIBUTES = (
    "on",
    "device",
    "is_device_map_set",
    "is_scriptable",
    "generated_methods",
    "module_rref",
)

_UNSUPPORTED = (
    *("register_buffer", "register_parameter", "add_module", "apply", "cuda", "ipu", "xpu", "cpu", "type", "float"),
    *("double", "half", "bfloat16", "to", "register_backward_hook", "register_forward_pre_hook"),
    *("register_forward_hook", "state_dict", "load_state_dict", "named_parameters", "buffers", "named_buffers"),
    *("children", "named_children", "modules", "named_modules", "requires_grad_", "zero_grad", "share_memory"),
    "extra_repr",
)


class RemoteModule(torch.nn.Module):
    """A module on another worker, or on one of its devices.

    Args:
        remote_device: "worker1/cuda:0", "rank:1/cpu", or the name of a worker for its CPU.
        module_cls: class or function that creates the module. The worker imports it by name.
        args, kwargs: arguments of `module_cls`.

    Arguments on the CPU are moved to the module's GPU. Without a device map, results return to the CPU. An error of
    `module_cls` is raised at the first use.

    >>> module = RemoteModule("worker1/cpu", torch.nn.Linear, args=(20, 30))
    >>> module(torch.randn(128, 20)).shape
    torch.Size([128, 30])
    """

    on: str | int
    device: str
    is_device_map_set: bool
    is_scriptable: bool
    generated_methods: tuple[str, ...]
    module_rref: RRef[Any]

    def __init__(
        self,
        remote_device: str,
        module_cls: Callable[..., torch.nn.Module],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        _module_interface_cls: Any = None,
    ) -> None:
        _check_interface(_module_interface_cls)
        super().__init__()
        self._set_device(remote_device)
        arguments = (module_cls, tuple(args or ()), dict(kwargs or {}), self.device)
        self.module_rref = remote(self.on, _create_module, arguments)
        self._bind_methods()

    def forward_async(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run the module's forward on its worker and return a `torch.futures.Future` of the result."""
        arguments = (self.module_rref, self.device, self.is_device_map_set)
        return rpc_async(self.module_rref.owner(), _remote_forward, (*arguments, *args), kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As `forward_async`, and wait. Calling the object does the same."""
        arguments = (self.module_rref, self.device, self.is_device_map_set)
        return rpc_sync(self.module_rref.owner(), _remote_forward, (*arguments, *args), kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)  # skips the hooks of nn.Module, which are not supported

    def _set_device(self, remote_device: str) -> None:
        if not _process.is_set():
            raise AssertionError("RemoteModule only works in RPC: call init_rpc first.")
        location = _remote_device(remote_device)
        name = location.worker_name()
        on = name if name is not None else location.rank()
        agent = _agent.current()
        if on is None:
            on = agent.info.name
        self.on = on
        self.device = str(location.device())
        self.is_device_map_set = bool(agent.devices.map_to(agent.worker(on).name))
        self.is_scriptable = False
        self.generated_methods = ("forward_async", "forward")

    def _bind_methods(self) -> None:
        """Set the methods in `__dict__`, where torch has them too."""
        for name in self.generated_methods:
            self.__dict__[name] = MethodType(getattr(type(self), name), self)

    def remote_parameters(self, recurse: bool = True) -> list[RRef[Parameter]]:
        """Return references to the parameters, or without `recurse` to the direct ones, for `DistributedOptimizer`."""
        refs: list[RRef[Parameter]] = rpc_sync(self.on, _param_rrefs, args=(self.module_rref, recurse))
        return refs

    def get_module_rref(self) -> RRef[Any]:
        """Return the reference to the module."""
        return self.module_rref

    def train(self, mode: bool = True) -> "RemoteModule":
        """Set the training mode of the module on its worker."""
        rpc_sync(self.on, _set_training, args=(self.module_rref, mode))
        return self

    def eval(self) -> "RemoteModule":
        """Set the module on its worker to evaluation mode."""
        return self.train(False)

    def parameters(self, recurse: bool = True) -> NoReturn:
        """Not supported: the parameters are on another worker."""
        raise ValueError(
            "Method ``parameters`` not supported for RemoteModule. Please use ``remote_parameters`` instead."
        )

    def __getstate__(self) -> NoReturn:
        raise RuntimeError(
            "Cannot pickle RemoteModule in python pickler. RemoteModule can only be pickled when using RPC"
        )

    def __setstate__(self, state: object) -> NoReturn:
        raise RuntimeError(
            "Cannot unpickle RemoteModule in python pickler. RemoteModule can only be unpickled when using RPC"
        )

    @staticmethod
    def init_from_module_rref(
        remote_device: str, module_rref: RRef[Any], _module_interface_cls: Any = None
    ) -> "RemoteModule":
        """Return another RemoteModule for the same module.

        Args:
            remote_device: location of the module, as in `RemoteModule`.
            module_rref: result of `get_module_rref`.
        """
        _check_interface(_module_interface_cls)
        module = RemoteModule.__new__(RemoteModule)
        torch.nn.Module.__init__(module)
        module._set_device(remote_device)
        module.module_rref = module_rref
        module._bind_methods()
        return module


def _not_supported(name: str) -> Callable[..., NoReturn]:
    def method(self: RemoteModule, *args: object, **kwargs: object) -> NoReturn:
        raise ValueError(f"Method ``{name}`` not supported for RemoteModule")

    method.__name__ = name
    method.__doc__ = "Not supported: the module is on another worker."
    return method


for _name in _UNSUPPORTED:
    setattr(RemoteModule, _name, _not_supported(_name))

_RemoteModule = RemoteModule  # torch's name of the class with `_module_interface_cls`


def _check_interface(interface: object) -> None:
    if interface is not None:
        raise ValueError(
            f"_module_interface_cls={interface!r}: a RemoteModule has no TorchScript interface. Leave it out; "
            f"the module itself may be a scripted one."
        )


# -- on the worker of the module --------------------------------------------------------------------------------------


def _create_module(module_cls: Callable[..., Any], args: Any, kwargs: Any, device: str) -> Any:
    module = module_cls(*args, **kwargs)
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            "Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, "
            f"but it returns an instance of {type(module)}."
        )
    return module.to(device)


def _param_rrefs(module_rref: RRef[torch.nn.Module], recurse: bool) -> list[RRef[Parameter]]:
    return [RRef(param) for param in method_of(module_rref.local_value(), "parameters")(recurse)]


def _set_training(module_rref: RRef[torch.nn.Module], mode: bool) -> None:
    method_of(module_rref.local_value(), "train")(mode)


def _remote_forward(module_rref: RRef[Any], device: str, is_device_map_set: bool, *args: Any, **kwargs: Any) -> Any:
    run = method_of(module_rref.local_value(), "forward")
    if torch.device(device).type != "cuda":
        return run(*args, **kwargs)
    result = run(*_move_to(args, device), **_move_to(kwargs, device))
    return result if is_device_map_set else _move_to(result, "cpu")


def _move_to(values: Any, device: str) -> Any:
    """Move the tensors in `values`, including tuples, lists and dicts, to a device."""
    if isinstance(values, torch.Tensor):
        return values.to(device)
    if type(values) in (tuple, list):
        return type(values)(_move_to(value, device) for value in values)
    if type(values) is dict:
        return {key: _move_to(value, device) for key, value in values.items()}
    return values


# -- pickling in calls ------------------------------------------------------------------------------------------------


def _reduce(module: RemoteModule) -> tuple[Callable[..., RemoteModule], tuple[Any, ...]]:
    return _rebuild, tuple(getattr(module, name) for name in _REMOTE_MODULE_PICKLED_ATTRIBUTES)


def _rebuild(*attributes: Any) -> RemoteModule:
    module = RemoteModule.__new__(RemoteModule)
    module.__dict__.update(zip(_REMOTE_MODULE_PICKLED_ATTRIBUTES, attributes, strict=True))
    module._bind_methods()
    return module


pickling.register(RemoteModule, _reduce)
