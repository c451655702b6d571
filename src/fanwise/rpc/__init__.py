"""rpc: remote calls, remote references and distributed autograd. A drop-in for `torch.distributed.rpc`.

    import fanwise.rpc as rpc
    rpc.init_rpc("worker0", rank=0, world_size=2)
    rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 3))
    rpc.shutdown()

The same names and meanings, and the same texts where programs match on them; what is not there, and why, is in
docs/guides/from-torch-rpc.md. `fanwise.rpc.autograd`, `.optim` and `.nn` stand for torch's `distributed.autograd`,
`distributed.optim` and `distributed.nn`. What is private in torch and used all the same is in `torch_compat`.
How it works, in five minutes: docs/design/rpc.md.
"""

# ruff: noqa: E402  # torch is loaded first
import gc
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ..base.extras import check_installed as _check_installed
from ..base.lazy_names import lazy_modules as _lazy_modules

_check_installed("fanwise.rpc needs", "torch", extra="rpc")
import torch as _torch  # noqa: F401

# Whoever allocates a little after torch was loaded pays for the garbage collector's walk over all of it, 70 ms, more
# than this package takes. What is there is put among what is old: the next walk comes when there is much more of it.
# Not in a program that has frozen objects itself, as a process that others are forked from: it would thaw them.
if not gc.get_freeze_count():
    gc.collect(1)
    gc.freeze()
    gc.unfreeze()

from . import backend_registry as backend_registry
from . import constants as constants
from . import default_backend as _default_backend
from . import functions as functions
from . import waiting as _waiting  # noqa: F401  # now, as it would take the name of a function below
from .calling.call import Call as Call
from .calling.cancelling import cancelled as cancelled
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
    from .membership.worker_events import Subscription as Subscription
    from .metrics_report import metrics as metrics
    from .spawning import spawn as spawn
    from .starting import init_rpc as init_rpc
    from .starting import shutdown as shutdown
    from .streams.reading import Stream as Stream
    from .watching import Worker as Worker
    from .watching import on_worker_joined as on_worker_joined
    from .watching import on_worker_left as on_worker_left
    from .watching import on_worker_lost as on_worker_lost
    from .watching import workers as workers

# What only workers use, with what a worker is made of, is loaded when it is first asked for: most of what there is.
_HOME_OF = _lazy_modules(__file__)
_default_backend.register()


def is_available() -> bool:
    """Whether this package can be used; torch's programs ask."""
    return True


def __getattr__(name: str) -> Any:  # Any: of any type
    """`BackendType` changes when a backend is registered; torch's private names are in `torch_compat`."""
    if name in _HOME_OF:
        found = globals()[name] = getattr(importlib.import_module(_HOME_OF[name], __name__), name)
        return found
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
    return sorted({*globals(), *_HOME_OF, "BackendType", "autograd"})


__torch_rpc_aliases__ = {
    "torch.distributed.rpc.api": "fanwise.rpc.torch_compat",
    "torch.distributed.rpc.internal": "fanwise.rpc.torch_compat",
    "torch.distributed.rpc.rref_proxy": "fanwise.rpc.references.proxy",
}
