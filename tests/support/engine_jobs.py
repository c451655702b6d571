"""What the jobs of the engine contract do: each once for a process, and once for a simulation, under one name.

    JobRequest(pack(climbs), resources, keywords={"steps": 3})      runs `climbs` in a process
    SimulatedEngine(play)                                          plays `_climbs` for the same request

Loads nothing that a worker would not have, because workers load it.
"""

import os
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

from simulated_engine import Dies, Print, Say, SimulatedJob, Step, Wait

from fanwise.base.errors import TrialStopped
from fanwise.pool import current
from fanwise.pool.contract import Outcome, Reply

Steps = Generator[Step, Reply | None, Any]  # Any: results


def returns(value: object) -> object:
    """Ends at once."""
    return value


def _returns(job: SimulatedJob, value: object) -> Steps:
    yield Wait(0.0)
    return value


def raises(text: str) -> None:
    """Fails."""
    raise ValueError(text)


def _raises(job: SimulatedJob, text: str) -> Steps:
    yield Wait(0.0)
    raise ValueError(text)


def dies() -> None:
    """Its process ends without a word."""
    os._exit(3)


def _dies(job: SimulatedJob) -> Steps:
    yield Wait(0.0)
    raise Dies(Outcome("exit", "ended with exit code 3 before its function returned."))


def prints(out: str, err: str) -> None:
    """Prints, and fails."""
    sys.stdout.write(f"{out}\n")
    sys.stderr.write(f"{err}\n")
    raise ValueError("it has printed")


def _prints(job: SimulatedJob, out: str, err: str) -> Steps:
    yield Print(f"{out}\n")
    yield Print(f"{err}\n", is_error=True)
    raise ValueError("it has printed")


def climbs(steps: int) -> int:
    """Reports each step with a checkpoint, and what it has heard about the last one; heeds what it is told."""
    heard: object = None
    for step in range(steps):
        reply = current().report({"step": step, "heard": heard}, checkpoint=f"checkpoint-{step}")
        heard = [reply.decision, reply.body]
        if reply.ends:
            raise TrialStopped("told so")
    return steps


def _climbs(job: SimulatedJob, steps: int) -> Steps:
    heard: object = None
    for step in range(steps):
        yield Wait(1.0)
        reply = yield Say({"step": step, "heard": heard}, f"checkpoint-{step}")
        assert reply is not None, "reports are answered"
        heard = [reply.decision, reply.body]
        if reply.ends:
            raise TrialStopped("told so")
    return steps


def insists() -> None:
    """Reports again what a refusal says."""
    try:
        current().report({"first": True})
    except ValueError as error:
        current().report({"refused": str(error)})


def _insists(job: SimulatedJob) -> Steps:
    try:
        yield Say({"first": True})
    except ValueError as error:
        yield Say({"refused": str(error)})


def talks_on() -> None:
    """Ends while a thread of it goes on reporting until it is told to stop."""
    job, began = current(), threading.Event()

    def talk() -> None:
        while not job.report({"talks": True}).ends:
            began.set()

    threading.Thread(target=talk).start()
    began.wait()


def _talks_on(job: SimulatedJob) -> Steps:
    yield Say({"talks": True})


def waits() -> None:
    """Until it is told to end."""
    threading.Event().wait()


def _waits(job: SimulatedJob) -> Steps:
    yield Wait(float("inf"))


def is_deaf() -> None:
    """Reports that it is ready to be told to end, then that it was, and goes on."""
    try:
        current().report({"deaf": False})
        threading.Event().wait()
    except TrialStopped:
        current().report({"deaf": True})
    threading.Event().wait()


def _is_deaf(job: SimulatedJob) -> Steps:
    try:
        yield Say({"deaf": False})
        yield Wait(float("inf"))
    except TrialStopped:
        yield Say({"deaf": True})
    yield Wait(float("inf"))


def tells_of_itself() -> None:
    """Reports what it knows of itself."""
    job = current()
    current().report(
        {"number": job.number, "attempt": job.attempt, "seed": job.seed, "context": dict(job.context)},
    )


def _tells_of_itself(job: SimulatedJob) -> Steps:
    asked = job.request
    yield Say({"number": job.number, "attempt": asked.attempt, "seed": job.seed, "context": dict(asked.context or {})})


_PLAYED: dict[str, Callable[..., Steps]] = {
    "returns": _returns,
    "raises": _raises,
    "dies": _dies,
    "prints": _prints,
    "climbs": _climbs,
    "insists": _insists,
    "talks_on": _talks_on,
    "waits": _waits,
    "is_deaf": _is_deaf,
    "tells_of_itself": _tells_of_itself,
}


def play(job: SimulatedJob) -> Steps:
    """The program of a simulated engine that does what the functions here do."""
    keywords: dict[str, Any] = dict(job.request.keywords or {})  # Any: arguments of the job
    return _PLAYED[job.request.packed.name](job, **keywords)
