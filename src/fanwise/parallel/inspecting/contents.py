"""What a container or a tensor holds: a copy, whether it is still that, and how to put it back. The object stays.

Members of containers are compared as objects: what they hold in turn is theirs.
"""

from collections import deque
from typing import Any

import torch
from torch import Tensor

CONTAINERS = (list, dict, set, deque)
MOST_MEMBERS = 10_000


def copied(value: Any) -> Any:  # Any: of the user's making
    """What it holds now; None: it is no such thing, or too large, or replaced in each pass (a tensor of a graph)."""
    if isinstance(value, Tensor):
        return None if value.grad_fn is not None or value.is_meta else value.detach().clone()
    if isinstance(value, CONTAINERS) and len(value) <= MOST_MEMBERS:
        return value.copy()
    return None


def holds(value: Any, content: Any) -> bool:  # Any: a container or tensor, and a copy of it
    """Whether it still does."""
    if isinstance(value, Tensor):
        return value.shape == content.shape and torch.equal(value.detach(), content)
    if len(value) != len(content):
        return False
    if isinstance(value, dict):
        return all(one is other for one, other in zip(value, content, strict=True)) and all(
            value[name] is content[name] for name in content
        )
    if isinstance(value, set):
        return bool(value == content)
    return all(one is other for one, other in zip(value, content, strict=True))


def fill(value: Any, content: Any) -> None:  # Any: as above
    """It holds this again."""
    if isinstance(value, Tensor):
        with torch.no_grad():
            value.copy_(content)
    elif isinstance(value, dict):  # it may be that of an object, which is never to be seen without its attributes
        for name in [name for name in value if name not in content]:
            del value[name]
        value.update(content)
    else:
        value.clear()
        value.extend(content) if isinstance(value, list | deque) else value.update(content)
