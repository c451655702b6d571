"""What a checkpoint holds of a run, and what a run takes from one.

    register(model) ... --state_dict of each, plan, reported rows, random states--> content() --> a file
    a file --> adopt(content): plan and rows at once, the rest when its object is registered, or is registered already

So `resume=` needs no line in a training function: a model gets its state when `run.step` hears of it.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch

from ..comm.team import Stateful
from ..plans import Plan
from ..rng import generators_of
from .places import StrPath

_KEPT = "kept "


class RunState:
    """See the module.

    Args:
        fixed: parts of the plan that the user asked for by name; a checkpoint must agree.
        device: whose random states belong to it.

    Attributes:
        rows: what was reported, oldest first.
    """

    def __init__(self, plan: Plan, fixed: frozenset[str], device: torch.device) -> None:
        self.rows: list[dict[str, Any]] = []
        self._plan = plan
        self._fixed = fixed
        self._device = device
        self._objects: dict[str, Stateful] = {}
        self._waiting: dict[str, Any] = {}  # Any: state_dicts that wait for their objects
        self._settings: dict[int, list[dict[str, Any]]] = {}  # Any: of optimizers, by id, as a checkpoint has them
        self._chance: list[torch.Tensor] = []  # torch's random states at the place of the checkpoint

    # -- what belongs to it ----------------------------------------------------------------------------------------

    def register(self, kind: str, registered: Any) -> None:  # Any: has a state_dict
        """The next object of this kind, "model", "model2" ...; one that has a name keeps it."""
        if any(each is registered for each in self._objects.values()):
            return
        number = sum(name.rstrip("0123456789") == kind for name in self._objects)
        self._register(kind if number == 0 else f"{kind}{number + 1}", registered)

    def keep(self, name: str, kept: Any) -> None:  # Any: whatever the user gave
        """As `run.keep`. Raises TypeError when it has no state_dict, ValueError when the name is taken."""
        if not (hasattr(kept, "state_dict") and hasattr(kept, "load_state_dict")):
            raise TypeError(f"run.keep({name}=...): a {type(kept).__name__} has no state_dict and load_state_dict")
        if _KEPT + name in self._objects:
            raise ValueError(f"run.keep({name}=...): there is something kept under this name")
        self._register(_KEPT + name, kept)

    def _register(self, name: str, registered: Any) -> None:  # Any: as above
        self._objects[name] = registered
        if name in self._waiting:
            state = self._waiting.pop(name)
            registered.load_state_dict(state)
            if isinstance(registered, torch.optim.Optimizer):
                self._settings[id(registered)] = [
                    {key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]
                ]
        # A scheduler that is made after its optimizer was loaded has set the rates of its first step.
        optimizer = getattr(registered, "optimizer", None)
        for group, stored in zip(
            getattr(optimizer, "param_groups", []), self._settings.get(id(optimizer), []), strict=False
        ):
            group.update(stored)

    # -- to a checkpoint -------------------------------------------------------------------------------------------

    def content(self) -> dict[str, Any]:  # Any: numbers, tensors and state_dicts
        """Return the content of a checkpoint."""
        states = {**self._waiting, **{name: each.state_dict() for name, each in self._objects.items()}}
        kept = {name.removeprefix(_KEPT): state for name, state in states.items() if name.startswith(_KEPT)}
        parts = {name: state for name, state in states.items() if not name.startswith(_KEPT)}
        rows = [dict(row) for row in self.rows]
        chance = self._chance or [generator.get_state() for generator in generators_of(self._device)]
        of_device = {"random_of_device": chance[1]} if len(chance) > 1 else {}
        return {"run": self._plan.state(), **parts, "kept": kept, "rows": rows, "random": chance[0], **of_device}

    # -- from a checkpoint -----------------------------------------------------------------------------------------

    def adopt(self, content: dict[str, Any], source: StrPath) -> None:  # Any: as `content`
        """Continue from the content of a checkpoint. `source` names it in errors.

        Raises:
            ValueError: the run was asked for another shards=, threads=, seed= or reduce=.
        """
        self._adopt_plan(content.pop("run"), source)
        self.rows[:] = content.pop("rows")
        self._chance = [content.pop(name) for name in ("random", "random_of_device") if name in content]
        self._waiting = {_KEPT + name: state for name, state in content.pop("kept").items()} | content
        for name, registered in self._objects.items():
            self._register(name, registered)

    def _adopt_plan(self, stored: Mapping[str, Any], source: StrPath) -> None:  # Any: numbers
        plan = self._plan
        for name in ("shards", "threads", "seed"):
            if name in self._fixed and stored[name] != getattr(plan, name):
                raise ValueError(
                    f"{name}={getattr(plan, name)} was asked for, and the run in {os.fspath(source)} has "
                    f"{stored[name]}: the results would not be those of one run.\n"
                    f"Leave out {name}=, or give {stored[name]}."
                )
        if plan.reduce is None:
            plan.reduce = stored["reduce"]
        if plan.reduce != stored["reduce"]:
            raise ValueError(
                f"reduce={plan.reduce!r} was asked for, and the run in {os.fspath(source)} has {stored['reduce']!r}: "
                f"the results would be those of neither.\n"
                f"Give reduce={stored['reduce']!r}. To change it, begin a new run from the file's model and optimizer, "
                f"as torch.load reads them."
            )
        plan.shards = stored["shards"]
        plan.progress.seed = stored["seed"]
        plan.progress.resumed = stored["place"]
        if stored["threads"] != plan.threads:
            plan.threads = stored["threads"]
            torch.set_num_threads(stored["threads"])

    def reach(self, *, in_pass: bool) -> None:
        """The place of the checkpoint is reached: the program's own random numbers go on from there too.

        Not before, because the model is made meanwhile, which draws initial weights.
        """
        resumed = self._plan.progress.resumed
        is_in_pass = resumed is not None and not all(each["finished"] for each in resumed["passes"])
        if self._chance and (in_pass or not is_in_pass):
            # A checkpoint of a CPU device has no state for a GPU, and the other way round.
            for generator, state in zip(generators_of(self._device), self._chance, strict=False):
                generator.set_state(state)
            self._chance = []
