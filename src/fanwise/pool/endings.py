"""Why a job ended that did not say so itself, from everything the pool knows of it; and what becomes of its output.

    exit status, what was asked, its link, the kernel's kills, the last output --death_of--> Outcome

`deaths` puts the exit status alone into words; here is what the pool knows beside it. Looks at the job's files, and at
nothing else; changes no book.
"""

import contextlib
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

from .contract import Outcome
from .deaths import explain, is_gpu_out_of_memory
from .devices import ooms_so_far
from .jobs import Job
from .outcomes import end_of_stderr
from .specs import LINK_LOST

# How the reason begins when a link has ended because the process has; any other is worth telling.
_BY_ITS_EXIT = ("the other side ended", "process ")

# As torch, XLA, TensorFlow and the CUDA driver report them.
_CUDA_ERROR = re.compile(r"CUDA error|cuDNN error|CUDA_ERROR_|cudaError|MPS (client|server)")
_GPU_FAULT = (
    "Another job may have caused this: under MPS, a fatal error on a GPU ends the work of all jobs that share the GPU."
)


def death_of(job: Job, status: int, why: str) -> Outcome:
    """The outcome of a job whose process is gone and said nothing; `why`: what is known from elsewhere, or empty."""
    if job.asked is not None and not job.begun:
        return never_began(job)
    if job.asked == "terminate" and status in (0, LINK_LOST, -signal.SIGTERM):
        return Outcome("stopped", "ended by SIGTERM after a stop")
    last = end_of_stderr(Path(job.output + ".err"))
    if lost := f"it was lost: {why}" if why else _how_lost(job, status):
        return Outcome("lost", lost, last_output=last)
    death = explain(status, asked=job.asked, ooms=ooms_so_far() - job.ooms_before, last_output=last)
    return Outcome(death.kind, death.text, last_output=last)


def never_began(job: Job) -> Outcome:
    """The outcome of a job that was stopped in time."""
    return Outcome("stopped", f"job {job.id} was stopped before it began")


def _how_lost(job: Job, status: int) -> str:
    """How it lost the pool, or the pool lost it; empty when it died by itself."""
    worker, folder = job.worker, Path(job.output).parent
    if not job.begun and not folder.is_dir():
        return f"it could not begin, because somebody removed the folder {folder}. Make a new pool."
    if worker is None or job.asked is not None:
        return ""
    if worker.killed:
        return "it had closed its link to the pool, so it was ended"
    if status not in (0, LINK_LOST):
        return ""
    if worker.link is None:
        return "its link to the pool broke before anything was heard from it"
    ending = worker.link.ending
    if ending is None or ending.reason.startswith(_BY_ITS_EXIT):
        return ""
    return f"its link to the pool broke: {ending.reason}"


def has_cuda_error(outcome: Outcome) -> bool:
    """Return whether a job ended by an error of the GPU or of MPS other than a lack of memory."""
    if outcome.kind == "exception":
        return bool(_CUDA_ERROR.search(outcome.text))
    return outcome.kind in ("exit", "signal") and bool(_CUDA_ERROR.search(outcome.last_output))


def as_gpu_fault(outcome: Outcome) -> Outcome:
    """Return the outcome of a job with a CUDA error if other jobs had a share of its GPU under MPS."""
    return replace(outcome, kind="gpu-fault", text=f"{outcome.text}\n{_GPU_FAULT}")


def is_gpu_oom(outcome: Outcome) -> bool:
    """Return whether a job ended because there was not enough memory on a GPU."""
    texts = (outcome.text, outcome.last_output)
    return outcome.kind == "out-of-memory" and any(map(is_gpu_out_of_memory, texts))


def remove_output(job: Job) -> None:
    """Remove the files of its output; those that its submitter keeps only when they are empty."""
    for ending in (".out", ".err"):
        path = job.output + ending
        with contextlib.suppress(OSError):  # never made, or not ours to remove
            if job.request.output is None or os.path.getsize(path) == 0:
                os.unlink(path)
