"""What each engine provides meets the protocols of `adapters.py`: its names when this runs, their types by mypy."""

from typing import TYPE_CHECKING, Any

import pytest

from fanwise.tensor import adapters
from fanwise.tensor.engines import ENGINES

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")

PARTS: dict[str, tuple[Any, type]] = {  # Any: a dict of one protocol each
    "exchange": (adapters.exchanges, adapters.Exchange),
    "devices": (adapters.device_placements, adapters.DevicePlacement),
    "writing": (adapters.writers, adapters.Writer),
    "random": (adapters.generators, adapters.Generator),
    "wire": (adapters.wires, adapters.Wire),
    "gradients": (adapters.differentiators, adapters.Differentiator),
    "namespace": (adapters.standards, adapters.Standard),
}
PROVIDED = [(engine, part) for engine in ENGINES for part in PARTS if part != "gradients" or ENGINES[engine].autodiff]

if TYPE_CHECKING:
    from fanwise.tensor.with_jax import devices as j_devices
    from fanwise.tensor.with_jax import exchange as j_exchange
    from fanwise.tensor.with_jax import gradients as j_gradients
    from fanwise.tensor.with_jax import namespace as j_namespace
    from fanwise.tensor.with_jax import random as j_random
    from fanwise.tensor.with_jax import wire as j_wire
    from fanwise.tensor.with_jax import writing as j_writing
    from fanwise.tensor.with_numpy import devices as n_devices
    from fanwise.tensor.with_numpy import exchange as n_exchange
    from fanwise.tensor.with_numpy import namespace as n_namespace
    from fanwise.tensor.with_numpy import random as n_random
    from fanwise.tensor.with_numpy import wire as n_wire
    from fanwise.tensor.with_numpy import writing as n_writing
    from fanwise.tensor.with_tensorflow import devices as f_devices
    from fanwise.tensor.with_tensorflow import exchange as f_exchange
    from fanwise.tensor.with_tensorflow import gradients as f_gradients
    from fanwise.tensor.with_tensorflow import namespace as f_namespace
    from fanwise.tensor.with_tensorflow import random as f_random
    from fanwise.tensor.with_tensorflow import wire as f_wire
    from fanwise.tensor.with_tensorflow import writing as f_writing
    from fanwise.tensor.with_torch import devices as t_devices
    from fanwise.tensor.with_torch import exchange as t_exchange
    from fanwise.tensor.with_torch import gradients as t_gradients
    from fanwise.tensor.with_torch import namespace as t_namespace
    from fanwise.tensor.with_torch import random as t_random
    from fanwise.tensor.with_torch import wire as t_wire
    from fanwise.tensor.with_torch import writing as t_writing

    exchanges: list[adapters.Exchange] = [n_exchange, t_exchange, j_exchange, f_exchange]
    by_dlpack: list[adapters.DLPackExchange] = [t_exchange, j_exchange]
    device_placements: list[adapters.DevicePlacement] = [n_devices, t_devices, j_devices, f_devices]
    writers: list[adapters.Writer] = [n_writing, t_writing, j_writing, f_writing]
    generators: list[adapters.Generator] = [n_random, t_random, j_random, f_random]
    compiling: list[adapters.CompilingGenerator] = [j_random, f_random]
    wires: list[adapters.Wire] = [n_wire, t_wire, j_wire, f_wire]
    differentiators: list[adapters.Differentiator] = [t_gradients, j_gradients, f_gradients]
    standards: list[adapters.Standard] = [n_namespace, t_namespace, j_namespace, f_namespace]


def asked_of(protocol: type) -> set[str]:
    return {name for name, member in vars(protocol).items() if name[0] != "_" and callable(member)}


@pytest.mark.parametrize("engine", [name for name in ENGINES if ENGINES[name].dlpack])
def test_an_engine_with_dlpack_provides_what_is_asked_beside(engine: str) -> None:
    assert asked_of(adapters.DLPackExchange) - set(dir(adapters.exchanges[engine])) == set()


@pytest.mark.parametrize(("engine", "part"), PROVIDED)
def test_an_engine_provides_what_its_protocol_asks(engine: str, part: str) -> None:
    found, protocol = PARTS[part]
    assert asked_of(protocol) - set(dir(found[engine])) == set()
    assert found[engine].__name__ == f"fanwise.tensor.with_{engine}.{part}"


def test_what_is_missing_is_seen() -> None:
    assert {"export_memory", "layout_of"} <= asked_of(adapters.Exchange) - set(dir(adapters))
