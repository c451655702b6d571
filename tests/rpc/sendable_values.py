"""A program of three workers that send each other the values that programs of torch.distributed.rpc send.

    WHICH=torch.distributed.rpc python sendable_values.py        or fanwise.rpc

Prints one line of JSON: the result of each case, or the type and text of its error. test_sendable_values.py runs it.
"""

import collections
import dataclasses
import functools
import importlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.spawn import spawn

rpc: Any = importlib.import_module(os.environ["WHICH"])


class Counter:
    def __init__(self, count: int = 7) -> None:
        self.count = count

    def add(self, by: int) -> int:
        self.count += by
        return self.count


@dataclasses.dataclass
class Record:
    rref: Any
    name: str = "a"

    def add(self, by: int) -> Any:
        return self.rref.rpc_sync().add(by)


class Pair(NamedTuple):
    rref: Any
    number: int


class Slotted:
    __slots__ = ("rref",)

    def __init__(self, rref: Any) -> None:
        self.rref = rref


class Module(nn.Module):
    def __init__(self, rref: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.rref = rpc.remote("w2", Counter) if rref is None else rref
        self.several = [self.rref]

    def forward(self, by: int) -> Any:
        return self.several[0].rpc_sync().add(by)


class Doubler:
    def __call__(self, value: int) -> int:
        return 2 * value

    @classmethod
    def named(cls, value: int) -> tuple[str, int]:
        return cls.__name__, value

    @staticmethod
    def plain(value: int) -> int:
        return value


def same(value: Any) -> Any:
    return value


def call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def add_to(rref: Any, by: int) -> Any:
    return rref.rpc_sync().add(by)


def look(holder: Any) -> Any:
    return holder.rref.rpc_sync().add(0)


def look_in(values: Any, key: Any) -> Any:
    return values[key].rpc_sync().add(0)


def look_in_set(values: set[Any]) -> Any:
    return add_to(next(iter(values)), 0)


def add_by(proxy: Any, by: int) -> Any:
    return proxy.add(by)


def wait_for_add(proxy: Any, by: int) -> Any:
    return proxy.add(by).wait()


def are_one(first: Any, second: Any) -> bool:
    return first is second


def twice_to_here(rref: Any) -> Any:
    return rref.to_here().to_here().count


def described(info: Any) -> list[Any]:
    return [info.name, info.id]


def create_record() -> Record:
    return Record(rpc.RRef(Counter(3)))


def create_module() -> Module:
    return Module(rpc.RRef(Counter(4)))


def done_future() -> Any:
    future: torch.futures.Future[int] = torch.futures.Future()
    future.set_result(3)
    return future


def name_here() -> Any:
    return rpc.get_worker_info().name


def cases() -> dict[str, Callable[[], Any]]:
    """Return calls of worker 1 by worker 0, with references to a counter on worker 2 that starts at 7."""
    far, near, own = rpc.remote("w2", Counter), rpc.remote("w1", Counter), rpc.RRef(Counter())
    sync, later = functools.partial(rpc.rpc_sync, "w1"), functools.partial(rpc.rpc_async, "w1")
    return {
        # methods of proxies, as functions
        "proxy method to its owner": lambda: rpc.rpc_async(far.owner(), far.rpc_sync().add, args=(1,)).wait(),
        "proxy method to a third": lambda: sync(far.rpc_sync().add, args=(1,)),
        "proxy method by remote": lambda: rpc.remote("w1", far.rpc_sync().add, args=(1,)).to_here(),
        "remote proxy method": lambda: sync(far.remote().add, args=(1,)).to_here(),
        "async proxy method": lambda: sync(far.rpc_async().add, args=(1,)),
        "proxy method as argument": lambda: sync(call, args=(far.rpc_sync().add, 1)),
        "proxy method in a partial": lambda: sync(functools.partial(far.rpc_sync().add, 1)),
        # proxies
        "proxy as argument": lambda: sync(add_by, args=(far.rpc_sync(), 1)),
        "async proxy as argument": lambda: sync(wait_for_add, args=(far.rpc_async(), 1)),
        "proxy returned": lambda: sync(same, args=(far.rpc_sync(),)).add(1),
        # bound methods of references
        "to_here": lambda: later(far.to_here).wait().count,
        "to_here of the caller's": lambda: sync(own.to_here).count,
        "to_here as argument": lambda: sync(call, args=(far.to_here,)).count,
        "local_value on the owner": lambda: sync(near.local_value).count,
        "owner": lambda: described(sync(far.owner)),
        "is_owner": lambda: [sync(far.is_owner), sync(near.is_owner)],
        # references in objects
        "bound method of a holder": lambda: sync(Record(far).add, args=(1,)),
        "partial": lambda: sync(functools.partial(add_to, far), args=(1,)),
        "partial as argument": lambda: sync(call, args=(functools.partial(add_to, far, 1),)),
        "dataclass": lambda: sync(look, args=(Record(far),)),
        "dataclass returned": lambda: look(sync(create_record)),
        "named tuple": lambda: sync(look, args=(Pair(far, 1),)),
        "slots": lambda: sync(look, args=(Slotted(far),)),
        "dict": lambda: sync(look_in, args=({"a": far}, "a")),
        "deque": lambda: sync(look_in, args=(collections.deque([far]), 0)),
        "set": lambda: sync(look_in_set, args=({far},)),
        "the same twice": lambda: sync(are_one, args=(far, far)),
        # modules with references
        "module": lambda: sync(look, args=(Module(far),)),
        "module as function": lambda: sync(Module(far), args=(1,)),
        "module returned": lambda: look(sync(create_module)),
        "module created there": lambda: rpc.remote("w1", Module).rpc_sync().forward(1),
        "module created there with a reference": lambda: rpc.remote("w1", Module, args=(far,)).rpc_sync().forward(0),
        # references to references
        "reference to a reference": lambda: sync(twice_to_here, args=(rpc.RRef(far),)),
        "remote reference": lambda: rpc.remote("w1", same, args=(far,)).to_here().to_here().count,
        # futures
        "future": lambda: sync(same, args=(done_future(),)),
        "future in a list": lambda: sync(same, kwargs={"value": [done_future()]}),
        "future of a call": lambda: sync(same, args=(rpc.rpc_async("w2", same, args=(1,)),)),
        "bound method of a future": lambda: sync(done_future().wait),
        "future returned": lambda: sync(done_future),
        # functions of all kinds, and worker infos
        "worker info": lambda: sync(described, args=(rpc.get_worker_info(),)),
        "worker info in a dict": lambda: described(sync(same, args=({"to": far.owner()},))["to"]),
        "rpc_sync": lambda: sync(rpc.rpc_sync, args=("w2", name_here)),
        "remote": lambda: sync(rpc.remote, args=("w2", Counter)).to_here().count,
        "class": lambda: sync(Counter, args=(2,)).count,
        "class method": lambda: list(sync(Doubler.named, args=(2,))),
        "static method": lambda: sync(Doubler.plain, args=(2,)),
        "callable object": lambda: sync(Doubler(), args=(2,)),
        "method of a tensor": lambda: sync(torch.ones(2).add, args=(1,)).tolist(),
        "method of a module": lambda: list(sync(nn.Linear(2, 3).forward, args=(torch.ones(2),)).shape),
        "lambda": lambda: sync(lambda value: value + 1, args=(1,)),
        "lambda with a reference": lambda: sync(lambda: far.to_here().count),
        "lambda as argument": lambda: sync(call, args=(lambda value: value + 1, 1)),
    }


def work(rank: int, meet: str) -> None:
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)  # torch's rpc does
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=3, rpc_backend_options=options)
    if rank == 0:
        results: dict[str, list[Any]] = {}
        for name in cases():
            try:
                results[name] = ["value", cases()[name]()]
            except Exception as error:
                results[name] = ["error", type(error).__name__, str(error)]
        print(json.dumps(results))
    rpc.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, args=(f"file://{Path(folder, 'meet')}",), nprocs=3)  # type: ignore[no-untyped-call]
