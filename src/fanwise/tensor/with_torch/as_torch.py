"""A part in another engine inside torch's backward pass.

    forward:   torch tensors --convert--> arrays --f, remembering the way back--> arrays --convert--> torch tensors
    backward:  cotangents    --convert--> arrays --------pull---------> arrays    --convert--> gradients

torch's engine runs both, also in the threads of distributed autograd. With create_graph=True the way back is
itself such a part, a function of the inputs and the cotangents, so any order of derivative works. What was compiled
belongs to the function that the user holds, the way back of one call to that call's graph.
Loads torch; the other engine when first called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..adapters import Differentiator, Pull
from ..engines import use
from ..exchange import convert
from ..gradients.calls import Arguments, Static, load, put_together, taken_apart
from ..gradients.compiling import Compiler
from ..gradients.derivatives import MAX_RUNNERS, name_of
from ..trees import Leaf, TreeSpec, flatten

# Any throughout: the user's functions, what they take and return, and torch's contexts.

_There = Callable[[list[Leaf]], tuple[list[Leaf], Static, Pull]]


def crossing(f: Callable[..., Any], engine: str, jit: bool) -> Callable[..., Any]:
    """What `as_torch_function` returns."""
    return f if engine == "torch" else _TorchFunction(f, engine, jit)


class _TorchFunction:
    """f as a function of torch tensors. It can be pickled if f can: what is compiled stays behind."""

    def __init__(self, f: Callable[..., Any], engine: str, jit: bool) -> None:
        load(engine)
        self.__wrapped__ = f
        self.__name__ = name_of(f)
        self.__doc__ = f.__doc__
        self._engine = engine
        self._jit = jit
        self._compiler = Compiler(self.__name__)
        self._parts: dict[object, _Part] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        smooth = [place for place in places if leaves[place].dtype.is_floating_point or leaves[place].is_complex()]
        key = (spec, *map(type, leaves), *smooth)
        part = self._parts.get(key)
        if part is None:
            _check(Arguments.of(leaves, spec))
            if len(self._parts) >= MAX_RUNNERS:
                self._parts.clear()
            f, engine, jit = self.__wrapped__, self._engine, self._jit
            part = self._parts[key] = _Part.of(f, engine, spec, places, smooth, self._compiler, jit)
        return part.applied(leaves)

    def __repr__(self) -> str:
        return f"<{self.__name__} of {self._engine} as a function of torch tensors>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Callable[..., Any], str, bool]]:
        return crossing, (self.__wrapped__, self._engine, self._jit)


def _check(arguments: Arguments) -> None:
    if arguments.engine not in ("", "torch"):
        raise TypeError(
            f"a function made by as_torch_function takes torch tensors, got arrays of {arguments.engine}. "
            f'Convert them, for example with fanwise.tensor.convert(x, "torch"), or call the function it was made of.'
        )


@dataclass(slots=True)
class _Part:
    """f for arguments of one shape: the same tree, types, and tensors that have gradients."""

    engine: str
    places: Sequence[int]
    smooth: Sequence[int]
    apply: Callable[[list[Leaf]], tuple[list[Leaf], Static]]
    vjp: _There
    back: Callable[..., Any]

    @classmethod
    def of(
        cls,
        f: Callable[..., Any],
        engine: str,
        spec: TreeSpec,
        places: Sequence[int],
        smooth: Sequence[int],
        compiler: Compiler,
        jit: bool,
    ) -> "_Part":
        """Nothing is traced yet."""
        loaded = load(engine)

        def apply(leaves: list[Leaf]) -> tuple[list[Leaf], Static]:
            args, kwargs = spec.unflatten(leaves)
            with use(engine):
                return taken_apart(f(*args, **kwargs), engine)

        there = _Lazy(loaded, apply, smooth, compiler, jit)
        back: list[Callable[..., Any]] = []

        def way_back(leaves: list[Leaf], cotangents: list[Leaf | None]) -> Any:
            if not back:
                back.append(crossing(_pulled(loaded, apply, smooth), engine, jit))
            return back[0](leaves, cotangents)

        return cls(engine, places, smooth, there.apply, there.vjp, way_back)

    def applied(self, leaves: list[Leaf]) -> Any:
        """The result, with a history in torch if an input has one."""
        tensors = [leaves[place] for place in self.places]
        if torch.is_grad_enabled() and any(leaves[place].requires_grad for place in self.smooth):
            crossed = _OneCall(self, leaves)
            outputs = _Crossing.apply(crossed, *tensors)  # type: ignore[no-untyped-call]  # torch's
            assert crossed.static is not None, "torch did not run forward"
            return put_together(outputs, crossed.static)
        arrays, static = self.apply(self.arrays(leaves, tensors))
        return put_together([convert(y, "torch") for y in arrays], static)

    def arrays(self, leaves: list[Leaf], tensors: Sequence[torch.Tensor]) -> list[Leaf]:
        """The leaves with the engine's arrays in place of tensors."""
        converted = list(leaves)
        for place, x in zip(self.places, tensors, strict=True):
            converted[place] = convert(x.detach(), self.engine)
        return converted


class _Lazy:
    """Both ways of applying a part, each prepared when it is first needed."""

    def __init__(
        self,
        engine: Differentiator,
        apply: Callable[[list[Leaf]], tuple[list[Leaf], Static]],
        smooth: Sequence[int],
        compiler: Compiler,
        jit: bool,
    ) -> None:
        self._engine = engine
        self._as_it_is = apply
        self._smooth = smooth
        self._compiler = compiler
        self._jit = jit
        self._apply: Any = None
        self._vjp: Any = None

    def apply(self, leaves: list[Leaf]) -> tuple[list[Leaf], Static]:
        """f's result in pieces."""
        if self._apply is None:
            self._apply = self._compiled(leaves)(self._as_it_is)
        arrays, static = self._apply(leaves)
        return arrays, static

    def vjp(self, leaves: list[Leaf]) -> tuple[list[Leaf], Static, Pull]:
        """The same, and the way back."""
        if self._vjp is None:
            self._vjp = self._engine.vjp_runner(self._compiled(leaves), self._as_it_is, self._smooth)
        arrays, static, pull = self._vjp(leaves)
        return arrays, static, pull

    def _compiled(self, leaves: list[Leaf]) -> Callable[[Any], Any]:
        if not self._jit:
            return lambda run: run
        types = list(leaves)
        return lambda run: self._compiler.runner(self._engine, types, run)


def _pulled(
    engine: Differentiator, apply: Callable[[list[Leaf]], tuple[list[Leaf], Static]], smooth: Sequence[int]
) -> Callable[[list[Leaf], list[Leaf | None]], list[Leaf]]:
    """The way back as a function of its own, of the leaves and the cotangents."""

    def pulled(leaves: list[Leaf], cotangents: list[Leaf | None]) -> list[Leaf]:
        _, _, pull = engine.vjp(lambda leaves: (None, *apply(leaves)), list(leaves), smooth)
        return pull(cotangents)

    return pulled


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
    def forward(crossed: _OneCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = crossed.part
        arrays, crossed.static, crossed.pull = part.vjp(part.arrays(crossed.leaves, tensors))
        return tuple(convert(y, "torch") for y in arrays)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        crossed, *tensors = inputs
        ctx.crossed = crossed
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*[y for y in output if not (y.is_floating_point() or y.is_complex())])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors  # raises when one was written to, or all were let go
        crossed: _OneCall = ctx.crossed
        part = crossed.part
        if torch.is_grad_enabled():
            leaves = list(crossed.leaves)
            for place, x in zip(part.places, tensors, strict=True):
                leaves[place] = x
            grads = part.back(leaves, list(cotangents))
        else:
            assert crossed.pull is not None, "backward came before forward"
            given = [None if ct is None else convert(ct.detach(), part.engine) for ct in cotangents]
            grads = [convert(grad, "torch") for grad in crossed.pull(given)]
        each = iter(grads)
        return None, *[next(each) if place in part.smooth else None for place in part.places]
