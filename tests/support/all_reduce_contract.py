"""What everything promises that adds gradients over processes, as checks. Loads no pytest.

    for check in CHECKS:
        check(peer)            called at the same time by every process of a team, with its own `Peer`

A check makes the gradients of all shards from a seed, in every process, so each knows what the sum must be: that of the
tree over the shards, bit by bit, where the peer is exact; else near to it, and the same in every process. It raises
`AssertionError`, or what the `AllReduce` raised, when a promise is broken. No check hangs where the promises hold.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fanwise.parallel.comm.all_reduce import AllReduce, AllReducePlan, RankNode
from fanwise.parallel.comm.node_info import NodeInfo
from fanwise.parallel.comm.team import Team, divide
from fanwise.parallel.step.gradients import add_grads
from fanwise.parallel.step.tree import Node, TreeSum, assign, tree_reduce

Grads = list[Tensor | None]

_CPU = torch.device("cpu")
_SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (5, 7), (0, 4), (2, 3, 4, 5), (16,), (33, 65), (1, 1))
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)


@dataclass(frozen=True, slots=True)
class Peer:
    """One process of a team.

    Attributes:
        make: an `AllReduce` for these parameters; all make the same ones in the same order.
        is_exact: sums have the bits of the tree over the shards. Otherwise each process brings one node.
        leave: this process is gone, as if it had died. It does nothing after it.
        device: of the gradients.
        lost: what the others get then, unless what they do `together` `goes_on`: done again by those that are left.
    """

    team: Team
    make: Callable[[Sequence[nn.Parameter]], AllReduce]
    is_exact: bool
    leave: Callable[[], None]
    lost: type[BaseException]
    goes_on: bool
    device: torch.device = _CPU


Check = Callable[[Peer], None]


@dataclass(slots=True)
class Case:
    """Parameters, shards, and what the shards bring.

    `empty`: shards without samples. `reaches`: whether a shard has a gradient of a parameter.
    """

    params: list[nn.Parameter]
    shards: int = 6
    empty: frozenset[int] = frozenset()
    reaches: Callable[[int, int], bool] = lambda shard, place: True
    seed: int = 0
    count: float | None = 48.0

    def shard(self, index: int) -> Grads | None:
        if index in self.empty:
            return None
        found: Grads = []
        for place, param in enumerate(self.params):
            generator = torch.Generator().manual_seed(1000 * self.seed + 50 * index + place)
            # In double precision, so that the last bits of a sum depend on its order in every type.
            dtype = torch.complex128 if param.is_complex() else torch.float64
            values = torch.randn(param.shape, dtype=dtype, generator=generator) if self.reaches(index, place) else None
            found.append(None if values is None else values.to(param.device, param.dtype))
        return found

    def reached(self, place: int, size: int, *, is_exact: bool) -> list[Node[bytes]]:
        """What the nodes of the process at this place have gradients of."""
        tree: TreeSum[bytes] = TreeSum(self.shards, _either)
        for index in assign(self.shards, size)[place]:
            flags = bytes(self.reaches(index, its) for its in range(len(self.params)))
            tree.put(Node(index, index + 1, None if index in self.empty else flags))
        values = [node.value for node in tree.nodes if node.value is not None]
        return (
            tree.nodes if is_exact else [Node(place, place + 1, functools.reduce(_either, values) if values else None)]
        )

    def nodes(self, place: int, size: int, *, is_exact: bool) -> list[Node[Grads]]:
        """What the process at this place brings: nodes of the tree, or one of its own."""
        own = assign(self.shards, size)[place]
        tree: TreeSum[Grads] = TreeSum(self.shards, _add)
        for index in own:
            tree.put(Node(index, index + 1, self.shard(index)))
        if is_exact:
            return tree.nodes
        values = [node.value for node in tree.nodes if node.value is not None]
        return [Node(place, place + 1, functools.reduce(_add, values) if values else None)]

    def expected(self) -> Grads:
        every = [Node(index, index + 1, self.shard(index)) for index in range(self.shards)]
        found = tree_reduce(every, self.shards, _add)
        if self.count is not None:
            divide(found, self.count)
        return found


def _add(left: Grads, right: Grads) -> Grads:
    add_grads(left, right)
    return left


def _either(left: bytes, right: bytes) -> bytes:
    return bytes(map(operator.or_, left, right))


def params_of(
    peer: Peer, dtypes: Sequence[torch.dtype], shapes: Sequence[tuple[int, ...]] = _SHAPES
) -> list[nn.Parameter]:
    """Of all these shapes, with every type in turn; those of four axes lie channels last."""
    params = []
    for place, shape in enumerate(shapes):
        made = torch.zeros(shape, dtype=dtypes[place % len(dtypes)], device=peer.device)
        params.append(nn.Parameter(made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else made))
    return params


def summed(peer: Peer, made: AllReduce, case: Case) -> Grads:
    """The sum of a case, by those that take part now."""
    return peer.team.together(lambda: _sum(peer, made, case, lambda: met(peer, case)))


def _sum(peer: Peer, made: AllReduce, case: Case, make_plan: Callable[[], AllReducePlan]) -> Grads:
    try:
        made.reduce_scatter(nodes_of(peer, case), make_plan)
        return list(made.all_gather())
    except BaseException:
        made.release(is_aborted=True)
        raise


def nodes_of(peer: Peer, case: Case) -> list[Grads | None]:
    """The gradients of this process's nodes."""
    return [node.value for node in case.nodes(peer.team.index, peer.team.size, is_exact=peer.is_exact)]


def met(peer: Peer, case: Case) -> AllReducePlan:
    """Everybody can say what all have, so that all have come is all that they tell."""
    team = peer.team
    team.gather("adds", None)
    found = [
        RankNode(place, number, NodeInfo(node.start, node.stop, node.value or b""))
        for place in range(team.size)
        for number, node in enumerate(case.reached(place, team.size, is_exact=peer.is_exact))
    ]
    flags = [each.node.has_grad for each in found if each.node.has_grad]
    by_any = [any(each) for each in zip(*flags, strict=True)]
    return AllReducePlan(found, case.shards if peer.is_exact else team.size, by_any, case.count)


def check_sum(peer: Peer, found: Grads, case: Case) -> None:
    """It is the sum of the case, here and everywhere."""
    expected = case.expected()
    assert [grad is None for grad in found] == [grad is None for grad in expected], "what nobody reached is None"
    for one, other in zip(found, expected, strict=True):
        if one is not None and other is not None:
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            if peer.is_exact:
                assert _bits(one) == _bits(other), f"a sum of {one.dtype} has not the bits of the tree"
            else:
                # A sum of some normal numbers.
                torch.testing.assert_close(
                    one, other, rtol=0.0, atol=100 / (case.count or 1) * torch.finfo(one.dtype).eps
                )
    bits = [None if grad is None else _bits(grad) for grad in found]
    said = peer.team.together(lambda: peer.team.gather("compares", bits))
    assert all(each == bits for each in said), "all processes have the same sum"


def _bits(grad: Tensor) -> bytes:
    return grad.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if grad.numel() else b""


# -- the checks --------------------------------------------------------------------------------------------------------


def sums_are_those_of_the_tree_in_every_type(peer: Peer) -> None:
    for dtypes in (*((dtype,) for dtype in _DTYPES), _DTYPES):
        case = Case(params_of(peer, dtypes))
        check_sum(peer, summed(peer, peer.make(case.params), case), case)


def large_parameters_are_summed_too(peer: Peer) -> None:
    case = Case(params_of(peer, (torch.float32,), ((560_000,), (3, 1001), (7,))))
    check_sum(peer, summed(peer, peer.make(case.params), case), case)


def what_no_shard_has_reached_is_none(peer: Peer) -> None:
    params = params_of(peer, (torch.float32, torch.float64))
    made = peer.make(params)
    patterns: list[Callable[[int, int], bool]] = [
        lambda shard, place: place != 2,
        lambda shard, place: place % 2 == 0,
        lambda shard, place: (shard + place) % 3 == 0,
        lambda shard, place: shard == 4,
        lambda shard, place: False,
        lambda shard, place: True,
    ]
    for seed, reaches in enumerate(patterns):
        case = Case(params, reaches=reaches, seed=seed)
        check_sum(peer, summed(peer, made, case), case)


def shards_may_be_empty_or_fewer_than_processes(peer: Peer) -> None:
    params = params_of(peer, (torch.float32,))
    made = peer.make(params)
    for seed, (shards, empty) in enumerate([(6, {3}), (6, {0, 1, 2}), (6, {1, 2, 3, 4, 5}), (1, set()), (7, {6})]):
        case = Case(params, shards, frozenset(empty), seed=seed)
        check_sum(peer, summed(peer, made, case), case)


def a_sum_that_is_not_a_mean_is_not_divided(peer: Peer) -> None:
    case = Case(params_of(peer, (torch.float32,)), count=None)
    check_sum(peer, summed(peer, peer.make(case.params), case), case)


def what_is_written_into_a_sum_stays_in_this_process(peer: Peer) -> None:
    params = params_of(peer, (torch.float32, torch.float64))
    made = peer.make(params)
    for seed in range(5):
        case = Case(params, seed=seed)
        found = summed(peer, made, case)
        if peer.team.index == seed % peer.team.size:
            for grad in found:
                assert grad is not None
                grad.fill_(float("nan"))
        peer.team.together(lambda: peer.team.gather("has written", None))
        if peer.team.index != seed % peer.team.size:
            for one, other in zip(found, case.expected(), strict=True):
                assert one is not None and other is not None and not one.isnan().any()
                assert not peer.is_exact or _bits(one) == _bits(other)
        made.release()


def several_steps_do_not_disturb_each_other(peer: Peer) -> None:
    cases = [
        Case(params_of(peer, (dtype,)), seed=number) for number, dtype in enumerate((torch.float32, torch.float64))
    ]
    made = [peer.make(case.params) for case in cases]
    for _ in range(3):
        found = [summed(peer, each, case) for each, case in zip(made, cases, strict=True)]
        for sums, case in zip(found, cases, strict=True):
            check_sum(peer, sums, case)


def a_sparse_gradient_is_refused_and_the_next_sum_is_right(peer: Peer) -> None:
    params = params_of(peer, (torch.float32,), ((4, 3), (5,)))
    made = peer.make(params)
    sparse: Grads = [torch.zeros_like(params[0]).detach().to_sparse(), None]
    refused = _raised(lambda: made.reduce_scatter([sparse], _no_plan))
    assert refused is not None and issubclass(refused[0], TypeError) and "sparse" in refused[1], refused
    made.release(is_aborted=True)
    case = Case(params)
    check_sum(peer, summed(peer, made, case), case)


def _no_plan() -> AllReducePlan:
    raise AssertionError("the gradients are refused before the processes exchange a plan")


class _Aborted(Exception):
    """Every process refuses the plan."""


def an_aborted_sum_leaves_nothing(peer: Peer) -> None:
    params = params_of(peer, (torch.float32, torch.bfloat16))
    made = peer.make(params)

    def refuse() -> AllReducePlan:
        peer.team.gather("refuses the plan", None)
        raise _Aborted

    for seed in range(4):
        aborted = functools.partial(_sum, peer, made, Case(params, seed=900 + seed), refuse)
        assert _raised(functools.partial(peer.team.together, aborted)) == (_Aborted, "")
        case = Case(params, seed=seed, reaches=lambda shard, place: place != 1 or shard == 5)
        check_sum(peer, summed(peer, made, case), case)


def a_peer_that_is_gone_ends_the_sum_and_does_not_hang_it(peer: Peer) -> None:
    _check_leaving(peer, has_met=False)


def a_peer_that_is_gone_when_all_have_met_does_not_hang_it(peer: Peer) -> None:
    _check_leaving(peer, has_met=True)


class _Left(Exception):
    """This process takes part no more."""


def _check_leaving(peer: Peer, *, has_met: bool) -> None:
    params = params_of(peer, (torch.float32, torch.float64))
    made, case, size = peer.make(params), Case(params), peer.team.size
    check_sum(peer, summed(peer, made, case), case)

    def leave() -> AllReducePlan:
        if has_met:
            met(peer, case)
        peer.leave()
        raise _Left

    if peer.team.index == size - 1:
        assert _raised(lambda: peer.team.together(lambda: _sum(peer, made, case, leave))) == (_Left, "")
        return
    sums: list[Grads] = []
    raised = _raised(lambda: sums.append(summed(peer, made, case)))
    if raised is None:
        # A fast sum may be complete, because a process sends its gradients before it exchanges the plan.
        assert peer.goes_on or (has_met and not peer.is_exact)
    else:
        assert not peer.goes_on and issubclass(raised[0], peer.lost), raised
    if peer.goes_on:
        check_sum(peer, sums[0], case)
        assert peer.team.size == size - 1
        check_sum(peer, summed(peer, made, case), case)


def _raised(body: Callable[[], object]) -> tuple[type[BaseException], str] | None:
    """The type and the text of an error. Not the error: its frames would keep connections open that others watch."""
    try:
        body()
    except BaseException as error:
        return type(error), str(error)
    return None


CHECKS: tuple[Check, ...] = (
    sums_are_those_of_the_tree_in_every_type,
    large_parameters_are_summed_too,
    what_no_shard_has_reached_is_none,
    shards_may_be_empty_or_fewer_than_processes,
    a_sum_that_is_not_a_mean_is_not_divided,
    what_is_written_into_a_sum_stays_in_this_process,
    several_steps_do_not_disturb_each_other,
    a_sparse_gradient_is_refused_and_the_next_sum_is_right,
    an_aborted_sum_leaves_nothing,
    a_peer_that_is_gone_ends_the_sum_and_does_not_hang_it,
    a_peer_that_is_gone_when_all_have_met_does_not_hang_it,
)
