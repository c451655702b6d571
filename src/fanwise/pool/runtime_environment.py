"""The runtime environment of a job: working folder, `sys.path` and environment variables of its submitter.

The processes of a pool start with the environment that the pool began with. A job's runtime environment contains the
differences since then. Variables of the lease (threads, GPUs) and of the pool itself are never taken from the
submitter.

On a cluster, folders of the submitter's Python are omitted (`without_python`), and folders that do not exist on the
node are replaced by the node's own (`localize`), where Ray puts `runtime_env={"working_dir": ...}`.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .processes import TAG
from .specs import RuntimeEnvironment

# Numeric libraries, JAX and TensorFlow read these.
THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("PJRT_NPROC", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
)

# torch must ask NVML instead of CUDA whether there is a GPU, because a process with a CUDA context cannot be forked.
# pyarrow, which pandas imports, starts a thread of its memory allocator (jemalloc) unless told not to.
_FORK_SAFE = {
    **dict.fromkeys(THREAD_VARIABLES, "1"),
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

# Folders for sockets and logs of the MPS daemon, and the limit of a client's device memory; see `mps`.
MPS_PIPE_FOLDER, MPS_LOG_FOLDER = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MPS_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MPS_VARIABLES = (MPS_PIPE_FOLDER, MPS_LOG_FOLDER, MPS_MEMORY_LIMIT)

# Variables that the pool sets, even if the user's environment has others.
FIXED_VARIABLES = frozenset((*_FORK_SAFE, TAG))

# Variables that belong to the pool or to a lease, and not to the user's runtime environment.
OWN_VARIABLES = FIXED_VARIABLES | {"CUDA_VISIBLE_DEVICES", *MPS_VARIABLES}

# Huge pages for the C library's heap, which make `collapse` in `warm` faster.
_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb=1"

# The environment at the start of this process, or of the warm process that it was forked from.
_base: dict[str, str] = {}
_applied: RuntimeEnvironment | None = None


def capture_environment(base: Mapping[str, str] | None = None) -> RuntimeEnvironment:
    """Return the runtime environment of this process. `base`: variables to compare with; None: those at its start."""
    before = _base if base is None else base
    changes: dict[str, str | None] = {name: value for name, value in os.environ.items() if before.get(name) != value}
    changes.update(dict.fromkeys(before.keys() - os.environ.keys()))
    own = tuple(sorted((name, value) for name, value in changes.items() if name not in OWN_VARIABLES))
    return RuntimeEnvironment(_folder(), tuple(sys.path), own)


def guard_environment(environ: Mapping[str, str], tag: str) -> dict[str, str]:
    """Return the environment in which the first process of a pool is started. `tag`: see `processes`."""
    tunables = f"{environ[_TUNABLES]}:{_HUGE_PAGES}" if environ.get(_TUNABLES) else _HUGE_PAGES
    return {**environ, **_FORK_SAFE, _TUNABLES: tunables, TAG: tag}


def forget_tunables() -> None:
    """Remove the pool's tunables from this process's environment, so that its children do not inherit them."""
    own = os.environ.pop(_TUNABLES, "").removesuffix(_HUGE_PAGES).removesuffix(":")
    if own:
        os.environ[_TUNABLES] = own


def own_path() -> list[str]:
    """Return `sys.path` with the working folder last, so that files in it do not shadow modules."""
    return sorted(sys.path, key=lambda folder: folder == "")


def remember_base() -> None:
    _base.clear()
    _base.update(os.environ)


def apply(environment: RuntimeEnvironment, *, force: bool = False) -> None:
    """Give this process a runtime environment. `force`: also if it is the last one, to undo changes by user code."""
    global _applied
    if environment == _applied and not force:
        return
    _applied = environment
    variables = {**_base, **dict(environment.variables)}
    target = {name: value for name, value in variables.items() if value is not None}
    for name in set(os.environ) - target.keys() - OWN_VARIABLES:
        del os.environ[name]
    for name, value in target.items():
        if name not in OWN_VARIABLES and os.environ.get(name) != value:
            os.environ[name] = value
    sys.path[:] = environment.path
    with contextlib.suppress(OSError):  # a deleted folder: the job stays where it is
        os.chdir(environment.folder)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def without_python(environment: RuntimeEnvironment, prefixes: Sequence[str]) -> RuntimeEnvironment:
    """Remove the folders of a Python installation, such as `sys.prefix`, from `sys.path`.

    >>> without_python(RuntimeEnvironment("/me", ("/me", "/venv/lib/site-packages")), ["/venv"]).path
    ('/me',)
    """
    below = tuple(os.path.join(os.path.normpath(folder), "") for folder in prefixes)
    return replace(environment, path=tuple(entry for entry in environment.path if not entry.startswith(below)))


def localize(
    environment: RuntimeEnvironment, node: RuntimeEnvironment, is_folder: Callable[[str], bool] = os.path.isdir
) -> RuntimeEnvironment:
    """Return the environment with only the folders that exist on this machine, followed by those of `node`.

    >>> submitter = RuntimeEnvironment("/me/work", ("/me/work", "/me/lib"))
    >>> localize(submitter, RuntimeEnvironment("/tmp/ray", ("/tmp/ray",)), lambda folder: folder == "/me/lib")
    RuntimeEnvironment(folder='/tmp/ray', path=('/me/lib', '/tmp/ray'), variables=())
    """
    existing = [entry for entry in environment.path if is_folder(entry)]
    return RuntimeEnvironment(
        environment.folder if is_folder(environment.folder) else node.folder,
        tuple(dict.fromkeys((*existing, *node.path))),
        environment.variables,
    )
