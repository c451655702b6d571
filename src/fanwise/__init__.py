"""fanwise runs deep-learning work on all your CPUs and GPUs. This file holds only the public names.

    fanwise.rpc      remote calls, remote references, distributed autograd: a drop-in for torch.distributed.rpc
    fanwise.tune     search hyperparameters: Tuner, FIFO, report, load_experiment ...
    fanwise.board    experiments as live web pages
    fanwise.pool     warm workers: Pool, current
    fanwise.parallel train one model on many devices with the same result as on one: run, here
    fanwise.tensor   arrays of any engine
    fanwise.plot     figures from plain data
    fanwise.zoo      data sets and models of the examples
    fanwise.testing  what tests of such programs need
    fanwise.base     clocks, the version
    fanwise.errors   every error fanwise raises on its own account

Names load on first use (PEP 562): `import fanwise` loads no layer, no torch and no numpy, so that a worker or a command
line tool pays only for what it uses. Files inside the package never import this one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .base.version import VERSION

if TYPE_CHECKING:
    from . import base as base
    from . import board as board
    from . import errors as errors
    from . import parallel as parallel
    from . import plot as plot
    from . import pool as pool
    from . import rpc as rpc
    from . import tensor as tensor
    from . import testing as testing
    from . import tune as tune
    from . import zoo as zoo
    from .parallel import here as here
    from .parallel import run as run
    from .pool import Pool as Pool
    from .pool import current as current
    from .tune import search as search

__version__ = VERSION

_MODULES = ("base", "board", "errors", "parallel", "plot", "pool", "rpc", "tensor", "testing", "tune", "zoo")
_HOME_OF = {"Pool": ".pool", "current": ".pool", "here": ".parallel", "run": ".parallel", "search": ".tune"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name], __name__), name)
    raise AttributeError(f"module 'fanwise' has no attribute {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted(["__version__", *_MODULES, *_HOME_OF])
