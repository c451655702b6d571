"""What `fanwise.run(reduce=...)` takes: how gradients are added.

"exact"                       along one tree over the shards: the same bits on any devices
"fast"                        one operand a process: the last bits depend on their number
BFloat16(), PowerSGD(rank=2)  between hosts with fewer bytes, for slow links: another result, about the same
EverySteps(8)                 between hosts only now and then
"""

from dataclasses import dataclass

from .checks.checking import check_name, whole_number

_NAMES = ("exact", "fast")


@dataclass(frozen=True, slots=True)
class BFloat16:
    """Between hosts gradients travel as bfloat16: half of the bytes of float32.

    What is rounded away is sent later (error feedback). Within a host nothing changes, and a run on one host has the
    bits of "exact". On several the result depends on which shards are on which host.
    """


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Between hosts each matrix of gradients travels as one of low rank (Vogels et al. 2019, arXiv 1905.13727).

    A layer of n x k weights sends rank (n + k) numbers in the place of n k; vectors are sent as they are. What is left
    out is sent later (error feedback). Within a host nothing changes, and a run on one host has the bits of "exact".
    On several the result depends on which shards are on which host.

    Raises:
        TypeError, ValueError: the rank is no whole number of at least 1.
    """

    rank: int = 2

    def __post_init__(self) -> None:
        whole_number("rank", self.rank, least=1)


@dataclass(frozen=True, slots=True)
class EverySteps:
    """Hosts train apart, and every so many updates their parameters and optimizers become the mean (local SGD).

    Each host updates by the mean gradient of its own shards; within a host nothing changes, and a run on one host has
    the bits of "exact". Also at the end of each pass of `run.batches`, and before `run.save`, `run.mean` and `run.sum`,
    hosts are brought together. For steps with a loss function, of torch models. Stich 2019, arXiv 1805.09767.

    Raises:
        TypeError, ValueError: the number is no whole number of at least 1.
    """

    steps: int = 8

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, least=1)


Compression = BFloat16 | PowerSGD
Reduce = str | Compression | EverySteps


_SLOW = BFloat16 | PowerSGD | EverySteps


def check_reduce(reduce: object) -> None:
    """Raises TypeError or ValueError, which names what there is."""
    if isinstance(reduce, type) and issubclass(reduce, _SLOW):
        raise TypeError(f"reduce={reduce.__name__} is a class.\n  right:  reduce={reduce.__name__}()")
    if not isinstance(reduce, _SLOW):
        check_name("reduce", reduce, _NAMES)


def name_of_reduce(reduce: Reduce) -> str:
    """As it is written, and kept in checkpoints.

    >>> name_of_reduce("fast"), name_of_reduce(EverySteps(4))
    ('fast', 'EverySteps(steps=4)')
    """
    return reduce if isinstance(reduce, str) else repr(reduce)


def within_a_host(reduce: Reduce) -> str:
    """What it means where there is one host only.

    >>> within_a_host("fast"), within_a_host(PowerSGD())
    ('fast', 'exact')
    """
    return reduce if isinstance(reduce, str) else "exact"
