"""Functions over arrays of any engine: torch, JAX, TensorFlow and NumPy.

    import fanwise.tensor as ft

    y = ft.exp(x)                       # functions of the array API standard, on the engine of x
    with ft.use("jax"):                 # creation functions and dtypes use the current engine
        zeros = ft.zeros((2, 3))
    xp = ft.namespace(x)                # the same functions as one object, which can be pickled
    header, buffers = ft.to_wire(x)     # a few bytes, and a view of x's memory

Nothing is converted silently: two engines in one call are an error. Importing this package imports no engine. An
engine is imported when it is named or one of its arrays arrives. Besides the names below there are the functions,
constants and dtypes of the standard 2025.12, `linalg` and `fft`. docs/design/wire-format.md specifies the wire format.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..base.lazy_names import lazy_modules as _lazy_modules

if TYPE_CHECKING:
    from .adapters import register_engine as register_engine
    from .buffers import aligned_buffer as aligned_buffer
    from .engines import current_engine as current_engine
    from .engines import engine_of as engine_of
    from .engines import use as use
    from .exchange import convert as convert
    from .exchange import from_numpy as from_numpy
    from .exchange import item as item
    from .exchange import same_memory as same_memory
    from .exchange import size as size
    from .exchange import to_numpy as to_numpy
    from .gradients import grad as grad
    from .gradients import jit as jit
    from .gradients import stop_gradient as stop_gradient
    from .gradients import value_and_grad as value_and_grad
    from .gradients import vjp as vjp
    from .indexing import at as at
    from .namespaces import Namespace as Namespace
    from .namespaces import namespace as namespace
    from .namespaces.namespace import VERSION as __array_api_version__  # noqa: F401  # as the standard calls it
    from .namespaces.typed import *  # noqa: F403
    from .placement import device_of as device_of
    from .placement import devices as devices
    from .placement import to_device as to_device
    from .random import Key as Key
    from .random import normal as normal
    from .random import permutation as permutation
    from .random import uniform as uniform
    from .state import State as State
    from .wire import from_wire as from_wire
    from .wire import is_array as is_array
    from .wire import to_wire as to_wire

# The module of each name above. Modules are imported on first use: calls and jobs that send arrays need only the wire
# format.
_HOME_OF = _lazy_modules(__file__)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            value = globals()[name] = getattr(import_module(_HOME_OF[name], __name__), name)
            return value
        from .namespaces.dispatch import attribute

        return attribute(name, globals(), _HOME_OF)


def __dir__() -> list[str]:
    from .namespaces.dispatch import NAMES

    return sorted({*_HOME_OF, *NAMES})
