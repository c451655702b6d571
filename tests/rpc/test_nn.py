"""RemoteModule: forward, gradients, parameters, modes, sending it on; what torch's tests mix with TorchScript."""

import pickle
from typing import Any, cast

import pytest
import torch
from rpc_workers import Workers

import fanwise.rpc as rpc
from fanwise.rpc import autograd
from fanwise.rpc.nn import RemoteModule, _RemoteModule

# Any: what modules take and return.


class Affine(torch.nn.Module):
    def __init__(self, size: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((size,), 2.0))
        self.inner = torch.nn.Linear(1, 1)
        self.offset = offset

    def forward(self, x: torch.Tensor, number: int = 1, word: str = "default") -> tuple[str, int, torch.Tensor]:
        return word, number, self.weight * x + self.offset


def remote_module(to: str) -> RemoteModule:
    return RemoteModule(to, Affine, (3,), {"offset": 1.0})


def forward_of_all_kinds(to: str) -> list[Any]:
    module, x = remote_module(to), torch.ones(3)
    return [
        module.forward(x, 2, "sync"),
        module(x, 2, "called"),
        module.forward_async(x, 2, word="async").wait(),
        module(x),
    ]


@pytest.mark.parametrize("to", ["w1", "w1/cpu", "rank:1/cpu", "w0/cpu"])
def test_forward_runs_where_the_module_is(real_workers: Workers, to: str) -> None:
    one, _two = real_workers.group(2)
    results = one.do(forward_of_all_kinds, to)
    assert [result[:2] for result in results] == [("sync", 2), ("called", 2), ("async", 2), ("default", 1)]
    assert all(torch.equal(result[2], torch.full((3,), 3.0)) for result in results)


def gradient(to: str) -> tuple[torch.Tensor, torch.Tensor]:
    module = remote_module(to)
    x = torch.full((3,), 4.0, requires_grad=True)
    with autograd.context() as context_id:
        autograd.backward(context_id, [module(x)[2].sum()])
        here = autograd.get_gradients(context_id)[x]
        there = rpc.rpc_sync(to, gradient_there, args=(module.get_module_rref(), context_id))
    return here, there


def gradient_there(module: Any, context_id: int) -> torch.Tensor:
    return autograd.get_gradients(context_id)[module.local_value().weight]


def test_gradients_flow_through_it(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    here, there = one.do(gradient, "w1")
    assert here.tolist() == [2.0] * 3 and there.tolist() == [4.0] * 3


def make_wrongly(to: str) -> None:
    RemoteModule(to, cast(Any, dict))(1)


def make_with_an_interface() -> None:
    _RemoteModule("w0", Affine, (1,), _module_interface_cls=int)


def pickle_it() -> None:
    pickle.dumps(remote_module("w0"))


def test_wrong_uses_say_what_is_wrong(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    with pytest.raises(ValueError, match=r"Expect `module_cls\(\*args, \*\*kwargs\)` returns an instance of"):
        one.do(make_wrongly, "w1")
    with pytest.raises(ValueError, match="has no TorchScript interface"):
        one.do(make_with_an_interface)
    with pytest.raises(RuntimeError, match="RemoteModule can only be pickled when using RPC"):
        one.do(pickle_it)
    with pytest.raises(ValueError, match=r"Could not parse remote_device: w1/cpu/cpu"):
        one.do(forward_of_all_kinds, "w1/cpu/cpu")


def test_outside_of_a_group_there_is_none() -> None:
    with pytest.raises(AssertionError, match="RemoteModule only works in RPC"):
        RemoteModule("w1", Affine)
