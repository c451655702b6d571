"""An optimizer that is divided among the processes: each updates the slice of the parameters that it owns.

    owner:          mean gradient and state of its slice --optimizer of the slice--> new parameters, new state
    all processes:  barrier, then the new parameters of all slices

The state is in shared memory, in two versions. An update reads one version and writes the other, so it has no effect
before the barrier: if the owner of a slice dies, the next owner still finds the old state. Each process holds only its
part of the work.

This needs an optimizer that treats every element by itself. Each process gathers the whole state and updates all
parameters from then on if the program adds parameters, adds a hook that must see every gradient, reads
`optimizer.state`, or has another step that needs whole gradients. All processes learn of it in the same exchange.
"""

import inspect
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.optim.optimizer as optimizer_module
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ..comm.flat_layout import Bucket, in_order
from ..comm.shm_areas import Areas
from ..validation.misuse import hooks

Group = Mapping[str, Any]  # settings of an optimizer


def _adam_keys(group: Group) -> list[str]:
    return ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])


def _rmsprop_keys(group: Group) -> list[str]:
    return ["square_avg"] + ["momentum_buffer"] * bool(group["momentum"]) + ["grad_avg"] * bool(group["centered"])


# The values that each keeps for every element of a parameter.
KEYS: dict[type[Optimizer], Callable[[Group], list[str]]] = {
    SGD: lambda group: ["momentum_buffer"] if group["momentum"] else [],
    Adam: _adam_keys,
    AdamW: _adam_keys,
    RMSprop: _rmsprop_keys,
    Adagrad: lambda group: ["sum"],
}
COUNTED = (Adam, AdamW, RMSprop, Adagrad)  # those that also count their updates


def is_elementwise(optimizer: Optimizer, params: Sequence[nn.Parameter]) -> bool:
    """Return True if the optimizer can be divided, and has state for every element."""
    keys = KEYS.get(type(optimizer))
    if keys is None or not all(param.is_floating_point() for param in params):
        return False
    is_plain = not any(group.get("capturable") or group.get("differentiable") for group in optimizer.param_groups)
    return is_plain and not has_hooks(optimizer) and any(keys(group) for group in optimizer.param_groups)


def has_hooks(optimizer: Optimizer) -> bool:
    """Return True if a hook of the program is called for each update, which must see all gradients."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    num_global = len(optimizer_module._global_optimizer_pre_hooks) + len(optimizer_module._global_optimizer_post_hooks)
    return bool(own) or num_global > hooks()


def make_like(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> Optimizer:
    """Return an optimizer of the same class, with the same defaults, for other parameters."""
    kind: Callable[..., Optimizer] = type(optimizer)
    accepted = inspect.signature(kind.__init__).parameters
    return kind(list(groups), **{name: value for name, value in optimizer.defaults.items() if name in accepted})


class ShardedOptimizer:
    """Updates a slice of the parameters of the user's optimizer, whose settings are used and whose state_dict is whole.

    Args:
        params: parameters of the step.
    """

    def __init__(self, optimizer: Optimizer, memory: Areas, params: Sequence[nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._keys = KEYS[type(optimizer)]
        self._is_counted = type(optimizer) in COUNTED
        self._memory = memory
        self._params = list(params)
        self._version = 0
        self._counts = [0] * len(self._params)  # updates of each parameter
        self._has_state: set[tuple[int, str]] = set()  # number of a parameter, and key of the state
        self._numbers = {param: number for number, param in enumerate(self._params)}
        self._slices: dict[tuple[int, tuple[Bucket, ...]], Optimizer] = {}  # by version and buckets
        self._is_loaded = bool(optimizer.state)  # the optimizer has newer state than the memory
        self._lazy_state = LazyState(self._whole_state)
        self._temporary: dict[Any, dict[str, Any]] | None = None  # replaces the lazy state during state_dict
        if not self._is_loaded:
            optimizer.state = self._lazy_state
        self._groups = _params_of_groups(optimizer)
        self._hooks = [
            optimizer.register_state_dict_pre_hook(self._before_state_dict),
            optimizer.register_state_dict_post_hook(self._after_state_dict),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]

    @property
    def version(self) -> int | None:
        """Version of the state in the memory. None: the optimizer has loaded newer state."""
        return None if self._is_loaded else self._version

    @property
    def must_end(self) -> bool:
        """True if the optimizer can no longer be divided."""
        groups = _params_of_groups(self._optimizer)
        is_same = len(groups) == len(self._groups) and all(map(operator.is_, groups, self._groups))
        return not is_same or has_hooks(self._optimizer) or self._is_read

    @property
    def _is_read(self) -> bool:
        is_replaced = self._optimizer.state is not self._lazy_state and not self._is_loaded
        return is_replaced or self._lazy_state.is_fetched

    def end(self) -> None:
        """Give the whole state to the optimizer. No process may write state meanwhile, so all call it together."""
        if not self._is_loaded and not self._is_read:
            self._optimizer.state = self._whole_state()
        for hook in self._hooks:
            hook.remove()

    def begin(self, versions: Sequence[int | None]) -> None:
        """Before an update, write loaded state into the version of the memory that the other processes use."""
        if self._is_loaded:
            self._is_loaded = False
            self._version = next((version for version in versions if version is not None), self._version)
            self._store_loaded()
            self._optimizer.state = self._lazy_state

    def update(self, buckets: Sequence[Bucket], reached: Sequence[bool], grad_of: Callable[[Bucket], Tensor]) -> None:
        """Write new parameters and new state of the own buckets. `commit` makes them valid."""
        target = 1 - self._version
        own = self._slice_optimizer(target, tuple(buckets))
        for group, own_group in zip(self._optimizer.param_groups, own.param_groups, strict=True):
            own_group.update({name: value for name, value in group.items() if name != "params"})
        tensors = {bucket: self._memory.new_params(bucket) for bucket in buckets}
        for bucket in buckets:
            tensor = tensors[bucket]
            tensor.copy_(bucket.of_flat(in_order(self._params[bucket.param])))
            tensor.grad = grad_of(bucket) if reached[bucket.param] else None
            self._load_slice(own, tensor, bucket, target)
        own.step()
        for bucket in buckets:
            tensors[bucket].grad = None
            if reached[bucket.param]:
                self._store_slice(own, tensors[bucket], bucket, target)

    def commit(self, reached: Sequence[bool]) -> None:
        """Copy the new parameters of all slices into this process."""
        self._version = 1 - self._version
        for group in self._optimizer.param_groups:
            keys = self._keys(group)
            for param in group["params"]:
                number = self._numbers[param]
                if reached[number]:
                    self._counts[number] += 1
                    self._has_state.update((number, key) for key in keys)
        with torch.no_grad():
            numbers = self._numbers_in_groups()
            new = [self._memory.whole_param(number) for number in numbers]
            torch._foreach_copy_([self._params[number] for number in numbers], new)
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # learning-rate schedulers check it

    def _numbers_in_groups(self) -> list[int]:
        # A program may already have added parameters for another step.
        params = (param for group in self._optimizer.param_groups for param in group["params"])
        return sorted(self._numbers[param] for param in params if param in self._numbers)

    def _slice_optimizer(self, version: int, buckets: tuple[Bucket, ...]) -> Optimizer:
        key = (version, buckets)
        if key not in self._slices:
            # Other buckets belong to this process after one was lost.
            self._slices = {known: optimizer for known, optimizer in self._slices.items() if known[1] == buckets}
            groups = []
            for group in self._optimizer.param_groups:
                numbers = {self._numbers[param] for param in group["params"]}
                tensors = [self._memory.new_params(bucket) for bucket in buckets if bucket.param in numbers]
                groups.append({**group, "params": tensors})
            self._slices[key] = make_like(self._optimizer, groups)
        return self._slices[key]

    def _load_slice(self, own: Optimizer, tensor: Tensor, bucket: Bucket, target: int) -> None:
        """Copy the old state of a bucket to the memory of the new state, which the update changes."""
        count = self._counts[bucket.param]
        state = own.state[tensor]
        if count == 0:
            return  # the first update creates the state
        for key_number, key in enumerate(self._keys_of(bucket.param)):
            if (bucket.param, key) in self._has_state:
                new = self._memory.state(key_number, target, bucket)
                new.copy_(self._memory.state(key_number, self._version, bucket))
                state[key] = new
        if self._is_counted:
            state["step"] = torch.tensor(float(count))

    def _store_slice(self, own: Optimizer, tensor: Tensor, bucket: Bucket, target: int) -> None:
        """Move state that the first update has created into the memory."""
        state = own.state[tensor]
        for key_number, key in enumerate(self._keys_of(bucket.param)):
            new = self._memory.state(key_number, target, bucket)
            if key in state and state[key] is not None and state[key].data_ptr() != new.data_ptr():
                new.copy_(state[key])
        own.state.pop(tensor)

    def _keys_of(self, number: int) -> list[str]:
        param = self._params[number]
        for group in self._optimizer.param_groups:
            if any(member is param for member in group["params"]):
                return self._keys(group)
        return []

    def _whole_state(self) -> defaultdict[Any, dict[str, Any]]:
        whole: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for number in self._numbers_in_groups():
            if not self._counts[number]:
                continue
            state: dict[str, Any] = {"step": torch.tensor(float(self._counts[number]))} if self._is_counted else {}
            for key_number, key in enumerate(self._keys_of(number)):
                if (number, key) in self._has_state:
                    state[key] = self._memory.whole_state(key_number, self._version, number).clone()
            whole[self._params[number]] = state
        return whole

    def _before_state_dict(self, optimizer: Optimizer) -> None:
        if not self._is_loaded and not self._is_read:
            optimizer.state = self._temporary = self._whole_state()

    def _after_state_dict(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        if self._temporary is not None and optimizer.state is self._temporary:
            optimizer.state = self._lazy_state
        self._temporary = None

    def _after_load(self, optimizer: Optimizer) -> None:
        self._is_loaded = True

    def _store_loaded(self) -> None:
        self._has_state.clear()
        for number, param in enumerate(self._params):
            state = self._optimizer.state.get(param, {})
            for key_number, key in enumerate(self._keys_of(number)):
                if state.get(key) is not None:
                    self._memory.whole_state(key_number, self._version, number).copy_(state[key])
                    self._has_state.add((number, key))
            self._counts[number] = int(state["step"]) if "step" in state else int(bool(state))


def _params_of_groups(optimizer: Optimizer) -> list[object]:
    """Return the parameters of all groups, with None at the end of each group."""
    return [param for group in optimizer.param_groups for param in (*group["params"], None)]


class LazyState(defaultdict[Any, dict[str, Any]]):
    """`optimizer.state` while the state is divided. The first access fetches the whole state.

    The program may then change the state, so the optimizer must be updated as a whole.

    Args:
        fetch: returns the whole state, by parameter.
    """

    def __init__(self, fetch: Callable[[], Mapping[Any, dict[str, Any]]]) -> None:
        super().__init__(dict)
        self._fetch = fetch
        self.is_fetched = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy as a dict with the whole state."""
        return defaultdict, (dict,), None, None, iter(self.items())


def _fetching(name: str) -> Callable[..., Any]:
    method = getattr(defaultdict, name)

    def access(self: LazyState, *args: Any, **kwargs: Any) -> Any:
        if not self.is_fetched:
            self.is_fetched = True
            dict.update(self, self._fetch())
        return method(self, *args, **kwargs)

    return access


for _name in (
    "__getitem__ __contains__ __iter__ __reversed__ __len__ __eq__ __ne__ __repr__ __or__ get keys values items copy "
    "__setitem__ __delitem__ __ior__ pop popitem setdefault update clear"
).split():
    setattr(LazyState, _name, _fetching(_name))
