"""Tensors of every type and parametrized modules arrive unchanged, whichever way they leave the process."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # loaded by the first optimizer, which sets an environment variable
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from fanwise.links.codec import dumps_by_value, loads
from fanwise.pool.functions import pack, unpack_arguments, unpack_function
from fanwise.rpc.calling.serializer import Serializer
from fanwise.rpc.messages.messages import dumps as rpc_dumps
from fanwise.rpc.messages.messages import loads as rpc_loads

Make = Callable[[], Any]  # Any: a value of any type

WIRE_TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
)
WITHOUT_CODE = (
    *(torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2),
    *(getattr(torch, name) for name in ("uint4", "int2")),
)
BYTES = torch.arange(1, 65, dtype=torch.uint8)


class Labeled(Tensor):
    """A subclass with an attribute."""

    label = "none"


class Double(nn.Module):
    """A parametrization with an inverse."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def right_inverse(self, x: Tensor) -> Tensor:
        return x / 2


class Repeat(nn.Module):
    """A parametrization that changes the shape."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x])


def _of(dtype: torch.dtype, step: int = 1) -> Tensor:
    x = BYTES[: 4 * dtype.itemsize].clone().view(dtype) if dtype is not torch.bool else BYTES[:4] > 2
    return x[::step]


def _labeled(dtype: torch.dtype) -> Tensor:
    x = _of(dtype).as_subclass(Labeled)
    x.label = "mine"
    return x


def _tagged() -> Tensor:
    x = torch.ones(3)
    x.tag = {"origin": [1]}  # type: ignore[attr-defined]  # an attribute of the user's
    return x


def _coo(*, coalesced: bool) -> Tensor:
    x = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2], [1, 1, 0]]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))
    return x.coalesce() if coalesced else x


def _quantized(*, per_channel: bool) -> Tensor:
    x = torch.arange(6.0).reshape(2, 3)
    if per_channel:
        return torch.quantize_per_channel(x, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8)
    return torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)


def _shares() -> list[Tensor]:
    x = torch.arange(4.0)
    return [x, x]


def _spectral_norm() -> nn.Sequential:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3)), nn.ReLU())


def _several() -> nn.Module:
    module: nn.Module = parametrizations.weight_norm(parametrizations.orthogonal(nn.Linear(3, 3)), "bias", dim=0)
    parametrize.register_parametrization(module, "weight", Double())
    return module


def _unsafe() -> nn.Module:
    module = nn.Linear(3, 2, bias=False)
    parametrize.register_parametrization(module, "weight", Repeat(), unsafe=True)
    return module


def _recurrent() -> nn.Module:
    module: nn.Module = parametrizations.weight_norm(nn.LSTM(3, 2), "weight_hh_l0")
    return module


TENSORS: dict[str, Make] = {
    **{f"{dtype}": functools.partial(_of, dtype) for dtype in (*WIRE_TYPES, *WITHOUT_CODE)},
    **{f"strided {dtype}": functools.partial(_of, dtype, 2) for dtype in (*WIRE_TYPES, *WITHOUT_CODE)},
    "no dimensions": lambda: torch.tensor(1.5).to(torch.float8_e5m2),
    "empty": lambda: torch.empty(0, 3, dtype=torch.uint16),
    "big": lambda: torch.arange(40_000).to(torch.float8_e4m3fn),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.ones(3, 1).expand(3, 4),
    "conjugate": lambda: torch.tensor([1 + 2j, 3.0]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3.0]).conj().imag,
    "requires gradients": lambda: torch.ones(3, requires_grad=True),
    "transposed, requires gradients": lambda: torch.ones(2, 3, requires_grad=True).t(),
    "parameter": lambda: nn.Parameter(torch.ones(3)),
    "transposed parameter": lambda: nn.Parameter(torch.arange(6.0).reshape(2, 3).T),
    "float8 parameter": lambda: nn.Parameter(_of(torch.float8_e4m3fn), requires_grad=False),
    "frozen parameter": lambda: nn.Parameter(torch.ones(3), requires_grad=False),
    "subclass": lambda: _labeled(torch.float32),
    "float8 subclass": lambda: _labeled(torch.float8_e4m3fn),
    "one tensor twice": _shares,
    "coo": lambda: _coo(coalesced=True),
    "uncoalesced coo": lambda: _coo(coalesced=False),
    "coo that requires gradients": lambda: _coo(coalesced=True).requires_grad_(),
    "float8 coo": lambda: torch.sparse_coo_tensor(torch.tensor([[1, 3]]), _of(torch.float8_e4m3fn)[:2], (5,)),
    "csr": lambda: _coo(coalesced=True).to_sparse_csr(),
    "csc": lambda: _coo(coalesced=True).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "quantized": lambda: _quantized(per_channel=False),
    "quantized by channel": lambda: _quantized(per_channel=True),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged),
    "meta": lambda: torch.empty(2, 3, device="meta"),
}
MODULES: dict[str, Make] = {
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(3, 2)),
    "spectral_norm": _spectral_norm,
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(3, 3)),
    "several parametrizations": _several,
    "parametrization that changes the shape": _unsafe,
    "parametrized LSTM": _recurrent,
}


def difference(a: Any, b: Any) -> str:
    """Return the differences of a value after a round trip; empty if there are none."""
    if isinstance(a, list):
        return "not one tensor" if b[0] is not b[1] else difference(a[0], b[0])
    if isinstance(a, nn.Module):
        return _difference_of_modules(a, b)
    for attribute in ("dtype", "shape", "layout", "requires_grad", "is_quantized", "is_nested", "is_meta"):
        if attribute != "shape" or not a.is_nested:
            was, came = getattr(a, attribute), getattr(b, attribute)
            if was != came:
                return f"{attribute} {came}, not {was}"
    if type(a) is not type(b) or getattr(a, "label", None) != getattr(b, "label", None):
        return f"{type(b)} {vars(b)}, not {type(a)} {vars(a)}"
    if a.is_meta:
        return ""
    if a.is_nested:
        pairs = zip(a.unbind(), b.unbind(), strict=True)
        return "" if all(torch.equal(x, y) for x, y in pairs) else "other parts"
    if a.layout is not torch.strided:
        return _difference_of_sparse(a, b)
    if a.is_quantized:
        same = torch.equal(a.int_repr(), b.int_repr()) and torch.equal(a.dequantize(), b.dequantize())
        return "" if same else "other numbers"
    if a.stride() != b.stride():
        return f"strides {b.stride()}, not {a.stride()}"
    return "" if _bits(a) == _bits(b) else "other bits"


def _bits(x: Tensor) -> list[Any]:  # Any: nested lists of integers
    x = x.detach().as_subclass(Tensor).resolve_conj().resolve_neg()
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(x.itemsize)
    bits: list[Any] = [x.tolist()] if word is None else [x.view(word).tolist()]
    return bits


def _difference_of_sparse(a: Tensor, b: Tensor) -> str:
    if a.layout is not torch.sparse_coo:
        return "" if torch.equal(a.to_dense(), b.to_dense()) else "other numbers"
    if a.is_coalesced() != b.is_coalesced():
        return "otherwise coalesced"
    same_indices = torch.equal(a._indices(), b._indices())
    return "" if same_indices and _bits(a._values()) == _bits(b._values()) else "other numbers"


def _difference_of_modules(a: nn.Module, b: nn.Module) -> str:
    """`b` has the state of `a`, trains as it does, and can be made plain again."""
    was, came = a.state_dict(), b.state_dict()
    if list(was) != list(came) or not all(torch.equal(was[name], came[name]) for name in was):
        return "another state"
    for module, other in zip(a.modules(), b.modules(), strict=True):
        if parametrize.is_parametrized(module):
            if parametrize.type_before_parametrizations(module) is not parametrize.type_before_parametrizations(other):
                return f"another class, {type(other)}"
            if type(other) is type(module):
                return "the class of the sender's module"
            for name in module.parametrizations:  # type: ignore[union-attr]
                if not torch.equal(getattr(module, name), getattr(other, name)):
                    return f"another {name}"
    if (trained := _trained(a)) != _trained(b):
        return f"it trains differently: {trained}"
    b.load_state_dict(came)
    b.eval()  # spectral_norm changes its vectors in training
    for module in list(b.modules()):
        for name in list(getattr(module, "parametrizations", ())):
            value = getattr(module, name).detach().clone()
            parametrize.remove_parametrizations(module, name)
            if not torch.equal(getattr(module, name), value):
                return f"another {name} without parametrizations"
    return ""


def _trained(module: nn.Module) -> list[Any]:  # Any: nested lists of numbers
    """The parameters after a step of SGD."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    result = module(torch.linspace(0, 1, 3 if _width(module) == 3 else 4).repeat(2, 1))
    (result[0] if isinstance(result, tuple) else result).square().sum().backward()
    optimizer.step()
    return [parameter.tolist() for parameter in module.parameters()]


def _width(module: nn.Module) -> int:
    return 4 if isinstance(module, nn.Sequential) else 3


def identity(value: object) -> object:
    return value


def as_argument(value: object) -> Any:
    (received,), _ = unpack_arguments(pack(identity, (value,)).arguments)
    return received


def in_a_closure(value: object) -> Any:
    return unpack_function(pack(lambda: value).function)()


def as_result(value: object) -> Any:
    head, buffers = dumps_by_value(value)
    return loads(head, [memoryview(bytearray(buffer)) for buffer in buffers])


def _through_rpc(value: object, call: str | None) -> Any:
    head, buffers = rpc_dumps(Serializer().serialize(value, 1, call=call))
    message = rpc_loads(memoryview(bytes(head)), [memoryview(bytearray(buffer)) for buffer in buffers])
    return Serializer().deserialize(message if call is None else message[0], 0).value


def as_rpc_argument(value: object) -> Any:
    _, (received,), _ = _through_rpc((identity, (value,), {}), "identity")
    return received


def as_rpc_result(value: object) -> Any:
    return _through_rpc(value, None)


PATHS: list[Callable[[object], Any]] = [as_argument, in_a_closure, as_result, as_rpc_argument, as_rpc_result]


@pytest.mark.filterwarnings("ignore")  # of torch, about experimental types
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("makers", [TENSORS, MODULES], ids=["tensors", "modules"])
def test_values_arrive_unchanged(path: Callable[[object], Any], makers: dict[str, Make]) -> None:
    torch.manual_seed(1)
    differences = {}
    for name, make in makers.items():
        value = make()
        try:
            differences[name] = difference(value, path(value))
        except Exception as error:
            differences[name] = repr(error)
    assert {name: text for name, text in differences.items() if text} == {}
