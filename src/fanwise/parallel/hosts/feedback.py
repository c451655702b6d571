"""Gradients between hosts with fewer bytes, and what was not sent so far: `reduce=BFloat16()`, `reduce=PowerSGD(2)`.

    m = g + e                    the gradient of a host, and its error: what it has not sent so far
    send c(m);  e = m - c(m)     what is left out comes later
    BFloat16                     c rounds; the sum is rounded once more, by who adds it, and that is in its error, too
    PowerSGD                     c(m) = P q': Vogels et al. 2019, algorithms 1 and 2; Q begins where the last sum ended

So all that is applied adds up to all gradients, but for what is on its way. Errors, and Q, have versions: a sum makes
new ones, which count when all have come to its end; a step that is made again, because a host was lost in it, begins
from those before. All processes of a host have them, so any of them may lead it. Knows no links.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..reductions import BFloat16, Compression

# By the place of a parameter.
Parts = dict[int, Tensor]


@dataclass(frozen=True, slots=True)
class Between:
    """The hosts, as the leader of one sees them.

    Attributes:
        count: of hosts. mine: the number of this one.
        send, receive: bytes to another host, by its number, and from it.
    """

    count: int
    mine: int
    send: Callable[[int, str, Tensor], None]
    receive: Callable[[int, str], Tensor]

    def swapped(self, what: str, given: Sequence[Tensor]) -> list[Tensor]:
        """Each host gets its own of these flat tensors, of one length and type; what each has given to this one."""
        for host, flat in enumerate(given):
            if host != self.mine:
                self.send(host, what, flat.view(torch.uint8))
        mine = given[self.mine]
        return [mine if host == self.mine else self.receive(host, what).view(mine.dtype) for host in range(self.count)]

    def summed_by_slices(self, what: str, flat: Tensor) -> Tensor:
        """The sum of what all hosts have, each adding one slice of it: fewer bytes where there are more than two."""
        length = -(-len(flat) // self.count)
        padded = torch.nn.functional.pad(flat, (0, length * self.count - len(flat)))
        total = torch.zeros_like(padded[:length])
        for theirs in self.swapped(f"{what} slices", list(padded.view(self.count, length))):
            total += theirs
        return torch.cat(self.swapped(f"{what} sums", [total] * self.count))[: len(flat)]

    def summed(self, what: str, parts: Parts) -> Parts:
        """The sums of what all hosts have, in the order of hosts."""
        found: Parts = {}
        for dtype in dict.fromkeys(part.dtype for part in parts.values()):
            mine = {place: part for place, part in parts.items() if part.dtype == dtype}
            flat = torch.cat([part.reshape(-1) for part in mine.values()])
            total = torch.zeros_like(flat)
            for theirs in self.swapped(f"{what} {dtype}", [flat] * self.count):
                total += theirs
            sizes = [part.numel() for part in mine.values()]
            both = zip(mine.items(), cut(total, sizes), strict=True)
            found |= {place: summed.view(part.shape) for (place, part), summed in both}
        return found


def cut(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """So many elements each, one after another."""
    ends = list(itertools.accumulate(sizes))
    return [flat[end - size : end] for end, size in zip(ends, sizes, strict=True)]


class Feedback:
    """Of the parameters of one step.

    Attributes:
        how: what is sent. errors: of each parameter, flat. factors: Q of each matrix. Those that count.
        of_all: the errors of all hosts, by number, as they were last brought together for a checkpoint.

    Args:
        where: the number of this host, and how many there are.
    """

    def __init__(self, how: Compression, params: Sequence[nn.Parameter], where: Callable[[], tuple[int, int]]) -> None:
        self.how = how
        self.errors: Parts = {}
        self.factors: Parts = {}
        self.of_all: list[Parts] = []
        self._shapes = [param.shape for param in params]
        self._where = where
        self._new: tuple[Parts, Parts] = {}, {}

    # -- a sum -----------------------------------------------------------------------------------------------------

    def total(self, grads: Mapping[int, Tensor], between: Between) -> None:
        """The gradients of this host, flat and by place, become those of all hosts, about, in place."""
        self.abort()
        meant = {place: grad + self.errors[place] if place in self.errors else grad for place, grad in grads.items()}
        if isinstance(self.how, BFloat16):
            sums = self._rounded(meant, between)
        else:
            sums = self._low_rank(meant, self.how.rank, between)
        for place, grad in grads.items():
            grad.copy_(sums[place].view(-1))

    @property
    def news(self) -> tuple[Parts, Parts]:
        """What the sum has made anew, for the other processes of the host."""
        return self._new

    def take(self, news: tuple[Parts, Parts]) -> None:
        """Of the leader of the host."""
        self._new = news

    def commit(self) -> None:
        """All have come to the end of the sum."""
        self.errors = self.errors | self._new[0]  # others, since a checkpoint may hold those from before
        self.factors = self.factors | self._new[1]
        self.abort()

    def abort(self) -> None:
        """The sum does not count."""
        self._new = {}, {}

    def _left(self, place: int, error: Tensor) -> None:
        """Not sent. Where a gradient has overflowed, its step is left out, and the error stays what it was."""
        if torch.isfinite(error).all():
            self._new[0][place] = error.reshape(-1)

    def _rounded(self, meant: Parts, between: Between) -> Parts:
        """By slices, as exact sums are: each host adds one, and gives its sum to the others."""
        flat = torch.cat([each.float() for each in meant.values()])
        size, length = len(flat), -(-len(flat) // between.count)
        flat = torch.nn.functional.pad(flat, (0, length * between.count - size))
        sent = flat.bfloat16().view(between.count, length)
        error = (flat - sent.view(-1).float()).view(between.count, length)
        total = torch.zeros(length)
        for theirs in between.swapped("rounded", list(sent)):
            total += theirs.float()
        own = total.bfloat16()
        error[between.mine] += total - own.float()
        whole = torch.cat(between.swapped("sums", [own] * between.count))[:size].float()
        sizes = [each.numel() for each in meant.values()]
        for place, left in zip(meant, cut(error.view(-1), sizes), strict=True):
            self._left(place, left.to(meant[place].dtype, copy=True))
        return dict(zip(meant, cut(whole, sizes), strict=True))

    def _low_rank(self, meant: Parts, rank: int, between: Between) -> Parts:
        """m, p, q: of this host. P, Q: of all."""
        small = {place: each for place, each in meant.items() if not is_smaller(self._shapes[place], rank)}
        m = {place: each.view(self._shapes[place][0], -1) for place, each in meant.items() if place not in small}
        sums = between.summed("plain", small)
        for place in small.keys() & self.errors.keys():  # of a run that rounded them
            self._left(place, torch.zeros_like(self.errors[place]))
        p = {place: each @ self._factor(place, each, rank) for place, each in m.items()}
        P = {place: torch.linalg.qr(each).Q for place, each in between.summed("P", p).items()}
        q = {place: each.T @ P[place] for place, each in m.items()}
        Q = between.summed("Q", q)
        for place, each in m.items():
            sums[place] = (P[place] @ Q[place].T).reshape(-1)
            self._left(place, each - P[place] @ q[place].T)
            if torch.isfinite(Q[place]).all() and Q[place].any():  # from nothing nothing would come, for ever
                self._new[1][place] = Q[place]
        return sums

    def _factor(self, place: int, m: Tensor, rank: int) -> Tensor:
        """Q of the last sum; the first one is drawn, alike in every process and run."""
        if place in self.factors:
            return self.factors[place]
        drawn = torch.randn(m.shape[1], rank, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
        return drawn.to(m.dtype)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:  # Any: text and tensors
        """With the errors of all hosts, which were brought together before."""
        return {"how": repr(self.how), "errors": self.of_all or [self.errors], "factors": self.factors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: as above
        """On as many hosts each has its own errors again; on others each an equal part of all."""
        mine, count = self._where()
        each: list[Parts] = state["errors"]
        if len(each) == count:
            self.errors = dict(each[mine])
        else:
            places = sorted({place for errors in each for place in errors})
            self.errors = {
                place: torch.stack([errors[place] for errors in each if place in errors]).sum(0) / count
                for place in places
            }
        self.factors = dict(state["factors"]) if state["how"] == repr(self.how) else {}


def is_smaller(shape: Sequence[int], rank: int) -> bool:
    """Whether a parameter of this shape has fewer numbers as a matrix of this rank.

    >>> is_smaller((64, 32, 3, 3), 2), is_smaller((64,), 2), is_smaller((4, 4), 2)
    (True, False, False)
    """
    if len(shape) < 2:
        return False
    rows, columns = shape[0], 1
    for size in shape[1:]:
        columns *= size
    return rank * (rows + columns) < rows * columns
