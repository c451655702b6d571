"""fanwise runs deep-learning work on all your CPUs and GPUs.

    fanwise.tune     hyperparameter search: search, Tuner, report, load_experiment, ...
    fanwise.parallel data-parallel training with the same result as on one device: run, here
    fanwise.rpc      remote calls, remote references, distributed autograd: a drop-in for torch.distributed.rpc
    fanwise.pool     warm workers: Pool, current
    fanwise.tensor   functions for the arrays of several libraries
    fanwise.plot     figures
    fanwise.board    experiments as live web pages
    fanwise.zoo      data sets and models of the examples
    fanwise.testing  tools for tests of searchers and schedulers
    fanwise.errors   all errors

Names are imported on first use (PEP 562), so `import fanwise` imports neither torch nor numpy. Files in the package
never import this one.
"""

from typing import TYPE_CHECKING

from .base import version as _version
from .base.lazy_names import lazy_names

__version__ = _version.VERSION

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
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
