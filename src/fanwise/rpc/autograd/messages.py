"""The records that workers exchange in a backward pass: gradients, replies to `begin`, and failures."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch

from ...base.errors import FanwiseError
from ...links.codec import load_error, pack_error, unpack_error
from ..messages.records import control_codec

Grads = tuple[torch.Tensor | None, ...]


class SparseGradient(NamedTuple):
    """A sparse tensor in coordinate form, as dense tensors, which the codec of control messages knows."""

    indices: torch.Tensor
    values: torch.Tensor
    shape: tuple[int, ...]
    is_coalesced: bool


PackedGrads = tuple[torch.Tensor | SparseGradient | None, ...]


class Completed(NamedTuple):
    """The reply to `begin` of a worker when it and all that it told to begin have completed the pass.

    `not_received`: messages of the asking worker that had not arrived. They get no gradient.
    """

    not_received: tuple[int, ...] = ()


class UnknownContext(NamedTuple):
    """The reply to `begin` of a worker that does not know the context, or has released it."""


class Failure(NamedTuple):
    """The error of a backward pass on `worker`, which is raised on the worker that called `backward`."""

    worker: int
    packed: bytes

    @staticmethod
    def of(worker: int, error: BaseException) -> "Failure":
        return Failure(worker, pack_error(error))

    def error(self, load: Callable[[bytes], Any] | None = load_error) -> BaseException:
        """Return the error to raise, with "Error on Node 2: ..." as its text. `load`: as in `unpack_error`.

        It has its original type and, because programs written for torch catch that, is always a RuntimeError too.
        """
        original = unpack_error(self.packed, load)
        if isinstance(original, FanwiseError) and isinstance(original, RuntimeError):
            return original  # a lost worker, which the text names; `self.worker` only noticed it
        error = _with_text(original, f"Error on Node {self.worker}: {original}")
        for note in getattr(original, "__notes__", ()):
            error.add_note(note)
        return error


BeginReply = Completed | UnknownContext | Failure
control_codec.register(Completed, UnknownContext, Failure, SparseGradient, first_code=48)


def pack_grads(grads: Grads) -> PackedGrads:
    return tuple(None if grad is None else _pack(grad.detach()) for grad in grads)


def unpack_grads(packed: PackedGrads) -> Grads:
    return tuple(_unpack_sparse(grad) if isinstance(grad, SparseGradient) else grad for grad in packed)


def _pack(grad: torch.Tensor) -> torch.Tensor | SparseGradient:
    if grad.layout is torch.strided:
        return grad
    if grad.layout is not torch.sparse_coo:
        grad = grad.to_sparse_coo()  # type: ignore[no-untyped-call]  # torch's
    return SparseGradient(grad._indices(), grad._values(), tuple(grad.shape), grad.is_coalesced())


def _unpack_sparse(grad: SparseGradient) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        grad.indices, grad.values, grad.shape, is_coalesced=grad.is_coalesced, check_invariants=False
    )


def _with_text(original: BaseException, text: str) -> BaseException:
    """Return an error with this text that handlers of the original's type and of RuntimeError catch."""
    kind = type(original)
    if kind in (Exception, RuntimeError):
        return RuntimeError(text)
    bases = (kind,) if issubclass(kind, RuntimeError) else (kind, RuntimeError)
    # The user's class may take any arguments and compute its text, so neither is used.
    members = {
        "__init__": lambda self, *_args: None,
        "__str__": lambda self: text,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    try:
        derived = type(kind.__name__, bases, members)
        error = cast(BaseException, derived.__new__(derived, text))
        error.__dict__.update(original.__dict__)
        error.__dict__.pop("__notes__", None)
    except Exception:
        return RuntimeError(f"{text} ({kind.__name__})")
    error.__cause__ = original
    return error
