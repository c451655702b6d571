"""An optimizer whose state lies in slices, one for each process: each updates the slice of the parameters that it owns.

    owner:     mean gradient of its slice, its slice of the state --optimizer of the slice--> new parameters, new state
    everybody: barrier, then the new parameters of all slices

The state lies in the shared memory in two versions, of which the update writes one and leaves the other. Until all have
passed the barrier nothing has happened: when an owner dies, whoever owns its slice next finds the old state there, also
that of the dead. So the memory and the time of the state are divided by the number of processes.

Only for optimizers that treat every element by itself, the same in a slice as in the whole tensor. When that is no
longer so - somebody has added a group of parameters, or a hook that is to see every gradient, or has looked into
`optimizer.state`, or another step needs the optimizer as a whole - each process takes the whole state home and updates
by itself from then on. All learn of it in the exchange of the same step, so they do it together.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm.flat_layout import Bucket, in_order
from .elementwise import COUNTED, KEYS, another, is_watched
from .sliced_state import SlicedState


class SliceMemory(Protocol):
    """Memory that all processes see, for parameters and for up to three values of state for each of their elements."""

    def new_params(self, bucket: Bucket) -> Tensor:
        """What the owner of these elements makes them."""
        ...

    def state(self, key: int, version: int, bucket: Bucket) -> Tensor:
        """One of the values of state of these elements, in one of its two versions."""
        ...

    def whole_state(self, key: int, version: int, place: int) -> Tensor:
        """The same of a parameter, in its shape."""
        ...

    def whole_param(self, place: int) -> Tensor:
        """What the owners have made a parameter, in its shape."""
        ...


class ShardedOptimizer:
    """The user's optimizer, done by slices. It keeps the settings, and its state_dict is whole.

    Args:
        memory: where new parameters and state lie.
        params: of the step.
    """

    def __init__(self, optimizer: Optimizer, memory: SliceMemory, params: Sequence[nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._keys = KEYS[type(optimizer)]
        self._memory = memory
        self._params = list(params)
        self._version = 0
        self._counts = [0] * len(self._params)
        self._has: set[tuple[int, str]] = set()
        self._places = {param: place for place, param in enumerate(self._params)}
        self._slices: dict[tuple[int, tuple[Bucket, ...]], Optimizer] = {}
        self._is_stale = bool(optimizer.state)
        self._sliced = SlicedState(self._whole)
        self._shown: dict[Any, dict[str, Any]] | None = None  # in its place for a state_dict
        if not self._is_stale:
            optimizer.state = self._sliced
        self._held = _held_by(optimizer)
        self._hooks = [
            optimizer.register_state_dict_pre_hook(self._fill),
            optimizer.register_state_dict_post_hook(self._empty),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    # -- one update ------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """Where the state lies in the memory; None: what was loaded is not there yet."""
        return None if self._is_stale else self._version

    @property
    def ends(self) -> bool:
        """Whether it can no longer be done by slices."""
        held = _held_by(self._optimizer)
        is_same = len(held) == len(self._held) and all(map(operator.is_, held, self._held))
        return not is_same or is_watched(self._optimizer) or self._is_seen

    @property
    def _is_seen(self) -> bool:
        """Whether the program has looked into the state, or put another one in its place."""
        is_other = self._optimizer.state is not self._sliced and not self._is_stale
        return is_other or self._sliced.has_come

    def end(self) -> None:
        """The whole state goes to the optimizer, in every process; what updates from now on is the optimizer.

        Between two steps, or when all know in a step that all do it: then nobody writes into the state.
        """
        if not self._is_stale and not self._is_seen:
            self._optimizer.state = self._whole()
        for hook in self._hooks:
            hook.remove()

    def begin(self, versions: Sequence[int | None]) -> None:
        """What was loaded meanwhile goes into the memory, to where the others have it. Before anybody updates."""
        if self._is_stale:
            self._is_stale = False
            self._version = next((version for version in versions if version is not None), self._version)
            self._take_in()
            self._optimizer.state = self._sliced

    def update(self, buckets: Sequence[Bucket], reached: Sequence[bool], grad_of: Callable[[Bucket], Tensor]) -> None:
        """Write new parameters and new state of our buckets; nobody uses them yet."""
        target = 1 - self._version
        own = self._slice_optimizer(target, tuple(buckets))
        for group, its in zip(self._optimizer.param_groups, own.param_groups, strict=True):
            its.update({name: value for name, value in group.items() if name != "params"})
        tensors = {bucket: self._memory.new_params(bucket) for bucket in buckets}
        for bucket in buckets:
            tensor = tensors[bucket]
            tensor.copy_(bucket.of_flat(in_order(self._params[bucket.param])))
            tensor.grad = grad_of(bucket) if reached[bucket.param] else None
            self._set_state(own, tensor, bucket, target)
        own.step()
        for bucket in buckets:
            tensors[bucket].grad = None
            if reached[bucket.param]:
                self._keep_state(own, tensors[bucket], bucket, target)

    def commit(self, reached: Sequence[bool]) -> None:
        """All have updated: the parameters of this process become the new ones."""
        self._version = 1 - self._version
        for group in self._optimizer.param_groups:
            keys = self._keys(group)
            for param in group["params"]:
                place = self._places[param]
                if reached[place]:
                    self._counts[place] += 1
                    self._has.update((place, key) for key in keys)
        with torch.no_grad():
            places = self._in_groups()
            new = [self._memory.whole_param(place) for place in places]
            torch._foreach_copy_([self._params[place] for place in places], new)
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # what learning-rate schedulers ask for

    def _in_groups(self) -> list[int]:
        """Those of the step, which a program may have added others to that another step is to be made for."""
        held = (param for group in self._optimizer.param_groups for param in group["params"])
        return sorted(self._places[param] for param in held if param in self._places)

    # -- the optimizer of a slice ----------------------------------------------------------------------------------

    def _slice_optimizer(self, version: int, buckets: tuple[Bucket, ...]) -> Optimizer:
        """One of the same kind, of these buckets; another process's slice when the members change."""
        key = (version, buckets)
        if key not in self._slices:
            self._slices = {known: made for known, made in self._slices.items() if known[1] == buckets}
            self._slices[key] = self._make(buckets)
        return self._slices[key]

    def _make(self, buckets: tuple[Bucket, ...]) -> Optimizer:
        groups = []
        for group in self._optimizer.param_groups:
            its = {self._places[param] for param in group["params"]}
            tensors = [self._memory.new_params(bucket) for bucket in buckets if bucket.param in its]
            groups.append({**group, "params": tensors})
        return another(self._optimizer, groups)

    def _set_state(self, own: Optimizer, tensor: Tensor, bucket: Bucket, target: int) -> None:
        """The old state of a bucket, copied to where the new one is to be."""
        count = self._counts[bucket.param]
        state = own.state[tensor]
        if count == 0:
            return  # it makes its own
        for number, key in enumerate(self._keys_of(bucket.param)):
            if (bucket.param, key) in self._has:
                new = self._memory.state(number, target, bucket)
                new.copy_(self._memory.state(number, self._version, bucket))
                state[key] = new
        if type(own) in COUNTED:
            state["step"] = torch.tensor(float(count))

    def _keep_state(self, own: Optimizer, tensor: Tensor, bucket: Bucket, target: int) -> None:
        """State that the first step has made moves into the memory."""
        state = own.state[tensor]
        for number, key in enumerate(self._keys_of(bucket.param)):
            new = self._memory.state(number, target, bucket)
            if key in state and state[key] is not None and state[key].data_ptr() != new.data_ptr():
                new.copy_(state[key])
        own.state.pop(tensor)

    def _keys_of(self, place: int) -> list[str]:
        param = self._params[place]
        for group in self._optimizer.param_groups:
            if any(each is param for each in group["params"]):
                return self._keys(group)
        return []

    # -- the whole state -------------------------------------------------------------------------------------------

    def _whole(self) -> defaultdict[Any, dict[str, Any]]:  # Any: tensors, by parameter
        """The state of all slices, as this optimizer would have it."""
        found: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for place in self._in_groups():
            if not self._counts[place]:
                continue
            state: dict[str, Any] = {"step": torch.tensor(float(self._counts[place]))} if self._is_counted else {}
            for number, key in enumerate(self._keys_of(place)):
                if (place, key) in self._has:
                    state[key] = self._memory.whole_state(number, self._version, place).clone()
            found[self._params[place]] = state
        return found

    def _fill(self, optimizer: Optimizer) -> None:
        """Before state_dict, which is to see the whole state."""
        if not self._is_stale and not self._is_seen:
            optimizer.state = self._shown = self._whole()

    def _empty(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """After it: this process holds its slice only."""
        if self._shown is not None and optimizer.state is self._shown:
            optimizer.state = self._sliced
        self._shown = None

    def _loaded(self, optimizer: Optimizer) -> None:
        """After load_state_dict: what it holds is newer than what lies in the memory."""
        self._is_stale = True

    def _take_in(self) -> None:
        self._has.clear()
        for place, param in enumerate(self._params):
            state = self._optimizer.state.get(param, {})
            keys = self._keys_of(place)
            for number, key in enumerate(keys):
                if state.get(key) is not None:
                    self._memory.whole_state(number, self._version, place).copy_(state[key])
                    self._has.add((place, key))
            self._counts[place] = int(state["step"]) if "step" in state else int(bool(state))

    @property
    def _is_counted(self) -> bool:
        return type(self._optimizer) in COUNTED


def _held_by(optimizer: Optimizer) -> list[object]:
    """The parameters of all its groups, and where each group ends."""
    found: list[object] = []
    for group in optimizer.param_groups:
        found += group["params"]
        found.append(None)
    return found
