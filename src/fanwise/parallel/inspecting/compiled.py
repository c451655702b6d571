"""What `torch.compile` has made of a model, its loss and the modules that it calls.

Compiled code begins with guards. Among what they look at are torch's hooks for all modules: with another hook the code
is compiled anew, and after eight times torch executes it as it stands, with other bits. So nobody hooks into all
modules while compiled code runs. Code compiled for each shape by itself has other bits for a shape that came later.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .reached import Root, reached


@dataclass(frozen=True, slots=True)
class Compiled:
    """Whether any part is; and whether one is compiled for each shape by itself, without dynamic=True."""

    any_part: bool
    by_shape: bool


def compiled_parts(modules: Mapping[str, nn.Module], roots: Sequence[Root]) -> Compiled:
    """Of these modules, of which "" is the model, of the loss or loop, and of what they name."""
    called = [*(part for module in modules.values() for part in module.modules()), *roots]
    called += [each.value for root in roots for each in reached(root)]
    settings = list(_settings(called))
    named = (each.value for module in modules.values() for each in reached(module))
    # A library may name compiled code that it never calls; to refuse its shapes would be too much.
    return Compiled(bool(settings) or any(_settings(named)), any(setting is not True for setting in settings))


def _settings(found: Any) -> Iterator[object]:  # Any: objects of any kind
    """What dynamic= was for each of them that is compiled."""
    for each in found:
        if isinstance(each, nn.Module):
            if hasattr(each, "_orig_mod"):
                yield getattr(each.dynamo_ctx, "_dynamic", None)
            each = getattr(each, "_compiled_call_impl", None)  # of module.compile()
        if isinstance(each, types.FunctionType) and hasattr(each, "_torchdynamo_orig_callable"):
            cells = dict(zip(each.__code__.co_freevars, each.__closure__ or (), strict=True))
            yield getattr(cells["self"].cell_contents, "_dynamic", None) if "self" in cells else None
