"""A part in another engine inside torch's backward pass.

    forward:   torch tensors --convert--> arrays --f, remembering the way back--> arrays --convert--> torch tensors
    backward:  cotangents    --convert--> arrays --------pull---------> arrays    --convert--> gradients

torch's engine runs both, also in the threads of distributed autograd. With create_graph=True the way back is
itself such a part, a function of the inputs and the cotangents, so any order of derivative works.
Loads torch; the other engine when first called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..adapters import Pull
from ..engines import use
from ..exchange import convert
from ..gradients.calls import Arguments, Static, load, put_together, taken_apart
from ..gradients.derivatives import name_of
from ..trees import Leaf, TreeSpec, flatten

# Any throughout: the user's functions, what they take and return, and torch's contexts.


def crossing(f: Callable[..., Any], engine: str) -> Callable[..., Any]:
    """What `as_torch_function` returns."""
    return f if engine == "torch" else _TorchFunction(f, engine)


class _TorchFunction:
    """f as a function of torch tensors. It can be pickled if f can."""

    def __init__(self, f: Callable[..., Any], engine: str) -> None:
        load(engine)
        self.__wrapped__ = f
        self.__name__ = name_of(f)
        self.__doc__ = f.__doc__
        self._engine = engine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = flatten((args, kwargs))
        _check(Arguments.of(leaves, spec))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        smooth = [place for place in places if leaves[place].dtype.is_floating_point or leaves[place].is_complex()]
        part = _Part(self.__wrapped__, self._engine, spec, places, smooth)
        tensors = [leaves[place] for place in places]
        if torch.is_grad_enabled() and any(leaves[place].requires_grad for place in smooth):
            call = _OneCall(part, leaves)
            outputs = _Crossing.apply(call, *tensors)  # type: ignore[no-untyped-call]  # torch's
            assert call.static is not None, "torch did not run forward"
            return put_together(outputs, call.static)
        arrays, static = part.apply(part.arrays(leaves, tensors))
        return put_together([convert(y, "torch") for y in arrays], static)

    def __repr__(self) -> str:
        return f"<{self.__name__} of {self._engine} as a function of torch tensors>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Callable[..., Any], str]]:
        return crossing, (self.__wrapped__, self._engine)


def _check(arguments: Arguments) -> None:
    if arguments.engine not in ("", "torch"):
        raise TypeError(
            f"a function made by as_torch_function takes torch tensors, got arrays of {arguments.engine}. "
            f'Convert them, for example with fanwise.tensor.convert(x, "torch"), or call the function it was made of.'
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """f for arguments of one shape: where its tensors are, and those that have gradients."""

    f: Callable[..., Any]
    engine: str
    spec: TreeSpec
    places: Sequence[int]
    smooth: Sequence[int]

    def apply(self, leaves: list[Leaf]) -> tuple[list[Leaf], Static]:
        """f's result in pieces."""
        args, kwargs = self.spec.unflatten(leaves)
        with use(self.engine):
            return taken_apart(self.f(*args, **kwargs), self.engine)

    def vjp(self, leaves: list[Leaf]) -> tuple[list[Leaf], Static, Pull]:
        """The same, and the way back."""
        return load(self.engine).vjp(lambda leaves: (None, *self.apply(leaves)), leaves, self.smooth)

    def back(self, leaves: list[Leaf], cotangents: list[Leaf | None]) -> list[Leaf]:
        """The way back as a function of its own, of the leaves and the cotangents."""
        return self.vjp(list(leaves))[2](cotangents)

    def arrays(self, leaves: list[Leaf], tensors: Sequence[torch.Tensor]) -> list[Leaf]:
        """The leaves with the engine's arrays in place of tensors."""
        converted = list(leaves)
        for place, x in zip(self.places, tensors, strict=True):
            converted[place] = convert(x.detach(), self.engine)
        return converted


class _OneCall:
    """One call of a part, between its forward and its backward."""

    def __init__(self, part: _Part, leaves: list[Leaf]) -> None:
        self.part = part
        # Tensors are with torch, which sees when they are changed or let go.
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.static: Static | None = None
        self.pull: Pull | None = None


class _Crossing(torch.autograd.Function):
    """torch's view of a part."""

    @staticmethod
    def forward(call: _OneCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = call.part
        arrays, call.static, call.pull = part.vjp(part.arrays(call.leaves, tensors))
        return tuple(convert(y, "torch") for y in arrays)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        call, *tensors = inputs
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*[y for y in output if not (y.is_floating_point() or y.is_complex())])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors  # raises when one was written to, or all were let go
        call: _OneCall = ctx.call
        part = call.part
        if torch.is_grad_enabled():
            leaves = list(call.leaves)
            for place, x in zip(part.places, tensors, strict=True):
                leaves[place] = x
            grads = crossing(part.back, part.engine)(leaves, list(cotangents))
        else:
            assert call.pull is not None, "backward came before forward"
            given = [None if ct is None else convert(ct.detach(), part.engine) for ct in cotangents]
            grads = [convert(grad, "torch") for grad in call.pull(given)]
        each = iter(grads)
        return None, *[next(each) if place in part.smooth else None for place in part.places]
