"""The content of a checkpoint.

    content()         collects the state_dict of each registered object, the plan, reported rows and random states
    adopt(content)    restores plan and rows at once, and the state of each object when it is registered

`run.step` registers its model and optimizer, which restores their state. So `resume=` needs no code in a training
function.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch

from ..comm.team import Stateful
from ..config import Plan
from ..rng import generators_of
from .location import StrPath

_KEPT = "kept "


class RunState:
    """The state of a run: registered objects, plan, reports and random states.

    `explicit_settings`: names of the settings that the caller passed. They must equal those of a checkpoint.
    """

    def __init__(self, plan: Plan, explicit_settings: frozenset[str], device: torch.device) -> None:
        self.rows: list[dict[str, Any]] = []
        self._plan = plan
        self._explicit_settings = explicit_settings
        self._device = device
        self._objects: dict[str, Stateful] = {}
        self._waiting: dict[str, Any] = {}  # state_dicts of objects that are not registered yet
        self._settings: dict[int, list[dict[str, Any]]] = {}  # of restored optimizers, by id
        self._random: list[torch.Tensor] = []  # restored random states of torch

    def register(self, kind: str, registered: Any) -> None:
        """Register an object as "model", "model2", ... if its kind is "model". Restore its state from a checkpoint.

        A second call with the same object has no effect.
        """
        if any(known is registered for known in self._objects.values()):
            return
        number = sum(name.rstrip("0123456789") == kind for name in self._objects)
        self._register(kind if number == 0 else f"{kind}{number + 1}", registered)

    def keep(self, name: str, kept: Any) -> None:
        """Register an object of `run.keep`. Restore its state from a checkpoint."""
        if not (hasattr(kept, "state_dict") and hasattr(kept, "load_state_dict")):
            raise TypeError(f"run.keep({name}=...): a {type(kept).__name__} has no state_dict and load_state_dict")
        if _KEPT + name in self._objects:
            raise ValueError(f"run.keep({name}=...): another object has this name")
        self._register(_KEPT + name, kept)

    def _register(self, name: str, registered: Any) -> None:
        self._objects[name] = registered
        if name in self._waiting:
            state = self._waiting.pop(name)
            registered.load_state_dict(state)
            if isinstance(registered, torch.optim.Optimizer):
                self._settings[id(registered)] = [
                    {key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]
                ]
            # Creating a scheduler after its optimizer was restored has reset the learning rates.
            optimizer = getattr(registered, "optimizer", None)
            settings = self._settings.get(id(optimizer), [])
            for group, stored in zip(getattr(optimizer, "param_groups", []), settings, strict=False):
                group.update(stored)

    def content(self) -> dict[str, Any]:
        """Return the content of a checkpoint; see file.py."""
        states = {**self._waiting, **{name: registered.state_dict() for name, registered in self._objects.items()}}
        kept = {name.removeprefix(_KEPT): state for name, state in states.items() if name.startswith(_KEPT)}
        parts = {name: state for name, state in states.items() if not name.startswith(_KEPT)}
        rows = [dict(row) for row in self.rows]
        random_states = self._random or [generator.get_state() for generator in generators_of(self._device)]
        of_device = {"random_of_device": random_states[1]} if len(random_states) > 1 else {}
        return {"run": self._plan.state(), **parts, "kept": kept, "rows": rows, "random": random_states[0], **of_device}

    def adopt(self, content: dict[str, Any], source: StrPath) -> None:
        """Continue from the content of a checkpoint. `source`: its location for error messages."""
        self._adopt_plan(content.pop("run"), source)
        self.rows[:] = content.pop("rows")
        self._random = [content.pop(name) for name in ("random", "random_of_device") if name in content]
        self._waiting = {_KEPT + name: state for name, state in content.pop("kept").items()} | content
        for name, registered in self._objects.items():
            self._register(name, registered)

    def _adopt_plan(self, stored: Mapping[str, Any], source: StrPath) -> None:
        plan = self._plan
        for name in ("shards", "threads", "seed"):
            if name in self._explicit_settings and stored[name] != getattr(plan, name):
                raise ValueError(
                    f"the run has {name}={getattr(plan, name)}, but its checkpoint {os.fspath(source)} has "
                    f"{name}={stored[name]}. Leave out {name}=, or pass {name}={stored[name]}."
                )
        if plan.reduce is None:
            plan.reduce = stored["reduce"]
        if plan.reduce != stored["reduce"]:
            raise ValueError(
                f"the run has reduce={plan.reduce!r}, but its checkpoint {os.fspath(source)} has "
                f"reduce={stored['reduce']!r}. Pass reduce={stored['reduce']!r}.\n"
                f"A new run may have another reduce=: load the model and optimizer from the file with torch.load."
            )
        plan.shards = stored["shards"]
        plan.position.seed = stored["seed"]
        plan.position.resumed = stored["position"]
        if stored["threads"] != plan.threads:
            plan.threads = stored["threads"]
            torch.set_num_threads(stored["threads"])

    def restore_random_state_if_due(self, *, in_pass: bool) -> None:
        """Restore the random states if the run has reached the position of the checkpoint.

        Called when an epoch or, with `in_pass`, a batch begins. Earlier it would have no effect if the program then
        draws random numbers, for example to initialize a model.
        """
        resumed = self._plan.position.resumed
        is_in_pass = resumed is not None and not all(state["finished"] for state in resumed["passes"])
        if self._random and (in_pass or not is_in_pass):
            # A checkpoint of a CPU device has no state for a GPU.
            for generator, state in zip(generators_of(self._device), self._random, strict=False):
                generator.set_state(state)
            self._random = []
