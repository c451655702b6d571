"""Engines have the functions of the protocols in `adapters.py`; mypy checks their types."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import fanwise.tensor as ft
from fanwise.tensor import adapters, engines
from fanwise.tensor.engines import ENGINES

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")

PARTS: dict[str, tuple[Any, type]] = {  # Any: a dict of one protocol each
    "exchange": (adapters.exchanges, adapters.Exchange),
    "devices": (adapters.device_placements, adapters.DevicePlacement),
    "writing": (adapters.writers, adapters.Writer),
    "gradients": (adapters.differentiators, adapters.Differentiator),
    "namespace": (adapters.standards, adapters.Standard),
}
PROVIDED = [(engine, part) for engine in ENGINES for part in PARTS if part != "gradients" or ENGINES[engine].autodiff]

if TYPE_CHECKING:
    from fanwise.tensor.with_jax import devices as j_devices
    from fanwise.tensor.with_jax import exchange as j_exchange
    from fanwise.tensor.with_jax import gradients as j_gradients
    from fanwise.tensor.with_jax import namespace as j_namespace
    from fanwise.tensor.with_jax import writing as j_writing
    from fanwise.tensor.with_numpy import devices as n_devices
    from fanwise.tensor.with_numpy import exchange as n_exchange
    from fanwise.tensor.with_numpy import namespace as n_namespace
    from fanwise.tensor.with_numpy import writing as n_writing
    from fanwise.tensor.with_tensorflow import devices as f_devices
    from fanwise.tensor.with_tensorflow import exchange as f_exchange
    from fanwise.tensor.with_tensorflow import gradients as f_gradients
    from fanwise.tensor.with_tensorflow import namespace as f_namespace
    from fanwise.tensor.with_tensorflow import writing as f_writing
    from fanwise.tensor.with_torch import devices as t_devices
    from fanwise.tensor.with_torch import exchange as t_exchange
    from fanwise.tensor.with_torch import gradients as t_gradients
    from fanwise.tensor.with_torch import namespace as t_namespace
    from fanwise.tensor.with_torch import writing as t_writing

    exchanges: list[adapters.Exchange] = [n_exchange, t_exchange, j_exchange, f_exchange]
    by_dlpack: list[adapters.DLPackExchange] = [t_exchange, j_exchange]
    device_placements: list[adapters.DevicePlacement] = [n_devices, t_devices, j_devices, f_devices]
    writers: list[adapters.Writer] = [n_writing, t_writing, j_writing, f_writing]
    differentiators: list[adapters.Differentiator] = [t_gradients]
    compiling: list[adapters.CompilingDifferentiator] = [j_gradients, f_gradients]
    standards: list[adapters.Standard] = [n_namespace, t_namespace, j_namespace, f_namespace]


def asked_of(protocol: type) -> set[str]:
    return {name for name, member in vars(protocol).items() if name[0] != "_" and callable(member)}


@pytest.mark.parametrize(("engine", "part"), PROVIDED)
def test_an_engine_provides_what_its_protocol_asks(engine: str, part: str) -> None:
    result, protocol = PARTS[part]
    assert asked_of(protocol) - set(dir(result[engine])) == set()
    assert result[engine].__name__ == f"fanwise.tensor.with_{engine}.{part}"


def test_what_is_missing_is_seen() -> None:
    assert {"export_memory", "addresses_of"} <= asked_of(adapters.Exchange) - set(dir(adapters))


def test_a_call_names_the_part_that_a_registered_engine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cells(np.ndarray[Any, Any]):
        pass

    tables: list[tuple[Any, Any]] = [
        (ENGINES, "cells"),
        (adapters.exchanges, "cells"),
        (engines._BASE_CLASSES, (__name__, "Cells")),
        (engines._engine_by_type, Cells),
    ]
    for table, key in tables:
        monkeypatch.setitem(table, key, None)  # removed again when the test ends
    ft.register_engine(engines.Engine("cells"), Cells, exchange=adapters.exchanges["numpy"])
    x = np.ones(2).view(Cells)
    assert ft.convert(x, "torch").tolist() == [1.0, 1.0]
    for call, part in ((ft.device_of, "devices"), (ft.exp, "namespace"), (lambda x: ft.at(x)[0].set(1.0), "writing")):
        with pytest.raises(TypeError, match=rf"cells was registered without the part '{part}'.*{part}=\.\.\."):
            call(x)
    with pytest.raises(TypeError, match="cells has no gradients; torch, jax, tensorflow have"):
        ft.grad(lambda x: x)(x)
