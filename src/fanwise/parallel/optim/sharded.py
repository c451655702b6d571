"""`StepOptimizer`: the optimizer of a step, which every process updates as a whole, or each process by slices.

    owner:          mean gradient and state of its slice --optimizer of the slice--> new parameters, new state
    all processes:  barrier, then the new parameters of all slices

The state is in shared memory, in two versions. An update reads one version and writes the other, so it has no effect
before the barrier. If the owner of a slice dies, the next owner still finds the old state.

Only an optimizer that treats every element by itself can be divided. Every process gathers the whole state, and updates
all parameters from then on, if the program adds parameters, adds a hook that must see every gradient, reads
`optimizer.state`, loads a state_dict, or has another step with the same optimizer. The processes agree on this before
each update.
"""

import functools
import operator
from collections import UserDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.optim.optimizer as optimizer_module
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..comm.flat_layout import Bucket, flatten_in_memory_order
from ..comm.shm_areas import Areas
from ..validation.misuse import is_watch_hook

Group = Mapping[str, Any]  # settings of an optimizer


def _adam_keys(group: Group) -> list[str]:
    return ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])


# Optimizers that can be divided, with the keys of their state that have a value for every element of a parameter.
_KEYS: dict[type[Optimizer], Callable[[Group], list[str]]] = {
    SGD: lambda group: ["momentum_buffer"] if group["momentum"] else [],
    Adam: _adam_keys,
    AdamW: _adam_keys,
}


def can_be_divided(optimizer: Optimizer, params: Sequence[nn.Parameter]) -> bool:
    """Return True if the optimizer treats every element by itself, and has state for the elements."""
    keys = _KEYS.get(type(optimizer))
    if keys is None or not all(param.is_floating_point() for param in params) or _has_hooks(optimizer):
        return False
    groups = optimizer.param_groups
    is_plain = not any(group.get("capturable") or group.get("differentiable") for group in groups)
    return is_plain and any(keys(group) for group in groups)


def _has_hooks(optimizer: Optimizer) -> bool:
    """Return True if the program has a hook that is called for each update, which must see all gradients."""
    hooks = [
        *optimizer._optimizer_step_pre_hooks.values(),
        *optimizer._optimizer_step_post_hooks.values(),
        *optimizer_module._global_optimizer_pre_hooks.values(),
        *optimizer_module._global_optimizer_post_hooks.values(),
    ]
    return not all(map(is_watch_hook, hooks))


class ShardedOptimizer:
    """Updates a slice of the parameters of the user's optimizer, whose state_dict is still whole."""

    def __init__(self, optimizer: Optimizer, memory: Areas, params: Sequence[nn.Parameter]) -> None:
        self._optimizer: Any = optimizer  # Any: its `state` is declared as a defaultdict
        self._is_counted = type(optimizer) is not SGD  # the state has the number of updates
        self._memory = memory
        self._params = list(params)
        self._version = 0
        self._counts = [0] * len(self._params)  # updates of each parameter
        self._has_state: set[tuple[int, str]] = set()  # index of a parameter, and key of the state
        self._indices = {param: index for index, param in enumerate(self._params)}
        self._slices: dict[tuple[int, tuple[Bucket, ...]], Optimizer] = {}  # by version and buckets
        if optimizer.state:
            self._store_whole_state()
        self._lazy_state = LazyState(self._whole_state)
        self._optimizer.state = self._lazy_state  # type: ignore[assignment]  # used like a defaultdict
        self._temporary: object = None  # replaces the lazy state during state_dict
        self._groups = _params_of_groups(optimizer)
        self._hooks = [
            optimizer.register_state_dict_pre_hook(self._before_state_dict),
            optimizer.register_state_dict_post_hook(self._after_state_dict),
        ]

    @property
    def must_end(self) -> bool:
        """True if the optimizer can no longer be divided."""
        groups = _params_of_groups(self._optimizer)
        is_same = len(groups) == len(self._groups) and all(map(operator.is_, groups, self._groups))
        return not is_same or _has_hooks(self._optimizer) or not self._is_lazy

    @property
    def _is_lazy(self) -> bool:
        """False if the program has read, replaced or loaded the state."""
        return self._optimizer.state is self._lazy_state and not self._lazy_state.is_fetched

    def end(self) -> None:
        """Give the whole state to the optimizer. All processes call this together, because none may write state."""
        if self._optimizer.state is self._lazy_state:
            self._optimizer.state = self._lazy_state.data
        for hook in self._hooks:
            hook.remove()

    def update(self, has_grad: Sequence[bool], buckets: Sequence[Bucket], grad_of: Callable[[Bucket], Tensor]) -> None:
        new_version, keys = 1 - self._version, self._keys()
        buckets = [bucket for bucket in buckets if bucket.param_index in keys]
        own = self._slice_optimizer(new_version, tuple(buckets))
        for group, own_group in zip(self._optimizer.param_groups, own.param_groups, strict=True):
            own_group.update({name: value for name, value in group.items() if name != "params"})
        tensors = {bucket: self._memory.new_params_view(bucket) for bucket in buckets}
        for bucket, tensor in tensors.items():
            tensor.copy_(bucket.view_in_param(flatten_in_memory_order(self._params[bucket.param_index])))
            tensor.grad = grad_of(bucket) if has_grad[bucket.param_index] else None
            if self._counts[bucket.param_index]:  # otherwise the update creates the state
                own.state[tensor] = self._copy_state(bucket, keys[bucket.param_index], new_version)
        own.step()
        for bucket, tensor in tensors.items():
            tensor.grad = None
            if has_grad[bucket.param_index]:
                state = own.state.pop(tensor, {})
                for key_index, key in enumerate(keys[bucket.param_index]):
                    new = self._memory.state_view(key_index, new_version, bucket)
                    if state.get(key) is not None and state[key].data_ptr() != new.data_ptr():
                        new.copy_(state[key])  # the update has created it

    def commit(self, has_grad: Sequence[bool]) -> None:
        self._version = 1 - self._version
        keys = self._keys()
        for index in keys:
            if has_grad[index]:
                self._counts[index] += 1
                self._has_state.update((index, key) for key in keys[index])
        with torch.no_grad():
            torch._foreach_copy_([self._params[index] for index in keys], list(map(self._memory.new_param, keys)))
        self._optimizer._opt_called = True  # learning-rate schedulers check it

    def _keys(self) -> dict[int, list[str]]:
        """Return the keys of the state of each parameter, by index. The settings of a group may change them."""
        # A program may already have added parameters for another step.
        keys = {
            self._indices[param]: _KEYS[type(self._optimizer)](group)
            for group in self._optimizer.param_groups
            for param in group["params"]
            if param in self._indices
        }
        return dict(sorted(keys.items()))

    def _slice_optimizer(self, version: int, buckets: tuple[Bucket, ...]) -> Optimizer:
        key = (version, buckets)
        if key not in self._slices:
            # This process has other buckets after a process was lost.
            self._slices = {known: optimizer for known, optimizer in self._slices.items() if known[1] == buckets}
            groups = []
            for group in self._optimizer.param_groups:
                indices = {self._indices[param] for param in group["params"]}
                tensors = [self._memory.new_params_view(bucket) for bucket in buckets if bucket.param_index in indices]
                groups.append({**group, "params": tensors})
            self._slices[key] = type(self._optimizer)(groups)
        return self._slices[key]

    def _copy_state(self, bucket: Bucket, keys: Sequence[str], new_version: int) -> dict[str, Tensor]:
        """Copy the old state of a bucket to the memory of the new state, which the update changes. Return the copy."""
        state: dict[str, Tensor] = {}
        for key_index, key in enumerate(keys):
            if (bucket.param_index, key) in self._has_state:
                state[key] = self._memory.state_view(key_index, new_version, bucket)
                state[key].copy_(self._memory.state_view(key_index, self._version, bucket))
        if self._is_counted:
            state["step"] = torch.tensor(float(self._counts[bucket.param_index]))
        return state

    def _whole_state(self) -> defaultdict[Any, dict[str, Any]]:
        whole: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for index, keys in self._keys().items():
            if not self._counts[index]:
                continue
            state: dict[str, Any] = {"step": torch.tensor(float(self._counts[index]))} if self._is_counted else {}
            for key_index, key in enumerate(keys):
                if (index, key) in self._has_state:
                    state[key] = self._memory.state_of_param(key_index, self._version, index).clone()
            whole[self._params[index]] = state
        return whole

    def _before_state_dict(self, optimizer: Optimizer) -> None:
        if self._is_lazy:
            self._optimizer.state = self._temporary = self._whole_state()

    def _after_state_dict(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        if self._optimizer.state is self._temporary:
            self._optimizer.state = self._lazy_state
        self._temporary = None

    def _store_whole_state(self) -> None:
        # Every process stores the same values, and none reads them before the first update.
        for index, keys in self._keys().items():
            state = self._optimizer.state.get(self._params[index], {})
            for key_index, key in enumerate(keys):
                if state.get(key) is not None:
                    self._memory.state_of_param(key_index, self._version, index).copy_(state[key])
                    self._has_state.add((index, key))
            self._counts[index] = int(state["step"]) if "step" in state else int(bool(state))


def _params_of_groups(optimizer: Optimizer) -> list[object]:
    return [param for group in optimizer.param_groups for param in (*group["params"], None)]


class LazyState(UserDict[Any, dict[str, Any]]):
    """`optimizer.state` while the state is divided. The first access fetches the whole state.

    The program may then change the state, so the optimizer must be updated as a whole.
    """

    def __init__(self, fetch: Callable[[], defaultdict[Any, dict[str, Any]]]) -> None:
        self._fetch = fetch

    @functools.cached_property
    def data(self) -> defaultdict[Any, dict[str, Any]]:  # type: ignore[override]  # UserDict keeps its items here
        return self._fetch()

    @property
    def is_fetched(self) -> bool:
        return "data" in vars(self)

    def __missing__(self, param: Any) -> dict[str, Any]:
        return self.data[param]

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict,), None, None, iter(self.data.items())


class StepOptimizer:
    """The optimizer of a step. `allow_slices`: False if the step needs whole gradients."""

    def __init__(self, params: Sequence[nn.Parameter], optimizer: Optimizer, *, allow_slices: bool) -> None:
        self.params = list(params)
        self.optimizer = optimizer
        self.sharded: ShardedOptimizer | None = None
        self._allow_slices = allow_slices

    def enable_slices(self, memory: Areas) -> None:
        """Update by slices from now on, in this shared memory, if the optimizer can be divided."""
        if self._allow_slices and can_be_divided(self.optimizer, self.params):
            self.sharded = ShardedOptimizer(self.optimizer, memory, self.params)

    def unshard(self) -> None:
        """Update the whole optimizer from now on. All processes call it between the same steps."""
        self._allow_slices = False
        if self.sharded is not None:
            self.sharded.end()
            self.sharded = None

    @property
    def can_update_slices(self) -> bool:
        """True if this process can update by slices. All processes exchange this before an update."""
        return self.sharded is not None and not self.sharded.must_end


class StepOptimizers:
    def __init__(self) -> None:
        self._by_optimizer: dict[int, list[StepOptimizer]] = {}

    def __contains__(self, optimizer: Optimizer) -> bool:
        return id(optimizer) in self._by_optimizer

    def add(self, params: Sequence[nn.Parameter], optimizer: Optimizer, *, allow_slices: bool) -> StepOptimizer:
        """Return the optimizer for a new step. If several steps have one optimizer, all update it as a whole.

        `allow_slices` is False for clipping, a scaled loss, or a loop of the program over the shards.
        """
        step_optimizers = self._by_optimizer.setdefault(id(optimizer), [])
        for earlier in step_optimizers:
            earlier.unshard()
        new = StepOptimizer(params, optimizer, allow_slices=allow_slices and not step_optimizers)
        step_optimizers.append(new)
        return new
