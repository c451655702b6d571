"""rpc: remote calls, remote references and distributed autograd. A drop-in for `torch.distributed.rpc`.

    import fanwise.rpc as rpc
    rpc.init_rpc("worker0", rank=0, world_size=2)
    rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 3))
    rpc.shutdown()

Names, behavior and the messages that programs match on are those of torch; docs/guides/from-torch-rpc.md lists the
differences. `fanwise.rpc.autograd`, `.optim` and `.nn` replace torch's `distributed.autograd`, `distributed.optim` and
`distributed.nn`. Private names of torch that programs use are in `torch_compat`. docs/design/rpc.md is an overview of
the implementation.
"""

# ruff: noqa: E402  # torch is imported first
import gc
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ..base.extras import check_installed as _check_installed
from ..base.lazy_names import lazy_modules as _lazy_modules

_check_installed("fanwise.rpc needs", "torch", extra="rpc")
import torch as _torch  # noqa: F401

# The first allocations after importing torch would trigger a full collection of its objects, 70 ms. Moving them to the
# oldest generation delays it. Skipped if the program has frozen objects, such as a fork server: it would unfreeze them.
if not gc.get_freeze_count():
    gc.collect(1)
    gc.freeze()
    gc.unfreeze()

from . import backend_registry as backend_registry
from . import constants as constants
from . import functions as functions
from .calling.call import Call as Call
from .calling.cancellation import cancelled as cancelled
from .calls import get_rpc_timeout as get_rpc_timeout
from .calls import get_worker_info as get_worker_info
from .calls import remote as remote
from .calls import rpc_async as rpc_async
from .calls import rpc_sync as rpc_sync
from .calls import stream as stream
from .calls import waiting as waiting
from .options import RpcBackendOptions as RpcBackendOptions
from .options import TensorPipeRpcBackendOptions as TensorPipeRpcBackendOptions
from .references.rref import RRef as RRef
from .worker_info import WorkerInfo as WorkerInfo

if TYPE_CHECKING:
    from . import autograd as autograd
    from .spawning import spawn as spawn
    from .starting import init_rpc as init_rpc
    from .starting import shutdown as shutdown
    from .streams import Stream as Stream
    from .traffic import metrics as metrics
    from .worker_events import Subscription as Subscription
    from .worker_events import Worker as Worker
    from .worker_events import on_worker_joined as on_worker_joined
    from .worker_events import on_worker_left as on_worker_left
    from .worker_events import on_worker_lost as on_worker_lost
    from .worker_events import workers as workers

# Most of the package is imported lazily, on first use by a worker.
_MODULE_OF = _lazy_modules(__file__)


def is_available() -> bool:
    """Return True. Programs written for torch call it."""
    return True


def __getattr__(name: str) -> Any:
    """Load lazy names, `BackendType`, which changes with each registered backend, and torch's private names."""
    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name], __name__), name)
        return value
    if name == "BackendType":
        return backend_registry.BackendType
    if not name.startswith("__"):
        if importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f".{name}", __name__)
        compat = importlib.import_module(".torch_compat", __name__)
        if hasattr(compat, name):
            return getattr(compat, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, "BackendType", "autograd"})


__torch_rpc_aliases__ = {
    "torch.distributed.rpc.api": "fanwise.rpc.torch_compat",
    "torch.distributed.rpc.internal": "fanwise.rpc.torch_compat",
    "torch.distributed.rpc.rref_proxy": "fanwise.rpc.references.proxy",
}
