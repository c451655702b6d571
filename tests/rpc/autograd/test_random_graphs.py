"""Random programs cut at random over four workers have the gradients, and the calls of hooks, of torch on one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_workers import World

from fanwise.rpc.autograd.contexts import Context

Place = int
NUM_WORKERS = 4


@dataclass(frozen=True)
class Step:
    """One operation at a place. Operands are earlier values, counted backwards and around."""

    op: str
    place: Place
    operands: tuple[int, int]
    together: bool = False  # both operands in one message
    anew: bool = False  # send again what was sent there before
    hook: bool = False


@dataclass
class Program:
    """Leaves at places, steps, and how many of the last values are roots (at the place of the last)."""

    leaves: Sequence[Place]
    hooked_leaves: frozenset[int]
    steps: Sequence[Step]
    num_roots: int


steps = st.builds(
    Step,
    op=st.sampled_from(["mul", "add", "sin", "matmul", "unbind", "drop", "double_in_place", "cut"]),
    place=st.integers(0, NUM_WORKERS - 1),
    operands=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    together=st.booleans(),
    anew=st.booleans(),
    hook=st.booleans(),
)
programs = st.builds(
    Program,
    leaves=st.lists(st.integers(0, NUM_WORKERS - 1), min_size=2, max_size=4),
    hooked_leaves=st.frozensets(st.integers(0, 3), max_size=2),
    steps=st.lists(steps, min_size=1, max_size=14),
    num_roots=st.integers(1, 3),
)


def computed(op: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if op == "mul":
        return x * y
    if op == "add":
        return x + y
    if op == "sin":
        return torch.sin(x)
    if op == "matmul":
        return x @ y.t() / 2
    if op == "unbind":
        rows = x.unbind(0)
        return torch.stack([rows[1], rows[0], rows[1] * y[0]])[:2]
    if op == "drop":
        return torch.cat([x[:1], x[:1]])
    if op == "double_in_place":
        return (x + y).mul_(2)
    return x.detach() * y


@dataclass
class Seen:
    """What hooks were given, by what they hang on."""

    grads: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def watch(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.requires_grad:
            kept = self.grads.setdefault(name, [])
            tensor.register_hook(lambda grad: kept.append(grad.clone()))  # type: ignore[no-untyped-call]  # torch's


def leaves_of(program: Program, seen: Seen) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = [torch.rand(2, 2, dtype=torch.float64, generator=generator).requires_grad_() for _ in program.leaves]
    for index in program.hooked_leaves:
        if index < len(made):
            seen.watch(made[index], f"leaf {index}")
    return made


def run_here(program: Program, times: int) -> tuple[list[torch.Tensor | None], Seen]:
    seen = Seen()
    leaves = leaves_of(program, seen)
    values = list(leaves)
    for number, step in enumerate(program.steps):
        x, y = (values[-1 - operand % len(values)] for operand in step.operands)
        values.append(computed(step.op, x, y))
        if step.hook:
            seen.watch(values[-1], f"step {number}")
    roots = [value.sum() for value in values[-program.num_roots :] if value.grad_fn is not None]
    for _ in range(times if roots else 0):
        torch.autograd.backward(roots, retain_graph=True)
    return [leaf.grad for leaf in leaves], seen


@dataclass
class Spread:
    """The program's values at their places, and the copies that were sent."""

    world: World
    home: Place
    context: Context
    values: list[tuple[Place, torch.Tensor]]
    copies: dict[tuple[int, Place], torch.Tensor] = field(default_factory=dict)

    def fetch(self, indices: Sequence[int], place: Place, anew: bool) -> None:
        """Bring values of one place to another by one message, as far as they are not there."""
        for source in {self.values[index][0] for index in indices} - {place}:
            sent = [index for index in indices if self.values[index][0] == source]
            missing = [index for index in sent if anew or (index, place) not in self.copies]
            if missing:
                if self.world[source].autograd.contexts.find(self.context.id) is None:
                    self.world.send(self.context.id, self.home, source, [])  # as a call would bring it there
                tensors = [self.values[index][1] for index in missing]
                received = self.world.send(self.context.id, source, place, tensors)
                self.copies.update({(index, place): one for index, one in zip(missing, received, strict=True)})

    def at(self, index: int, place: Place) -> torch.Tensor:
        where, value = self.values[index]
        return value if where == place else self.copies[index, place]


def run_spread(world: World, program: Program, times: int) -> tuple[list[torch.Tensor | None], Seen]:
    seen = Seen()
    leaves = leaves_of(program, seen)
    home = world[program.steps[-1].place]
    context = home.autograd.new_context()
    try:
        spread = Spread(world, home.id, context, list(zip(program.leaves, leaves, strict=True)))
        for number, step in enumerate(program.steps):
            count = len(spread.values)
            indices = [count - 1 - operand % count for operand in step.operands]
            for group in [indices] if step.together else [[index] for index in indices]:
                spread.fetch(group, step.place, step.anew)
            x, y = (spread.at(index, step.place) for index in indices)
            spread.values.append((step.place, computed(step.op, x, y)))
            if step.hook:
                seen.watch(spread.values[-1][1], f"step {number}")
        last = range(len(spread.values))[-program.num_roots :]
        spread.fetch(last, home.id, anew=False)
        ends = [spread.at(index, home.id) for index in last]
        # A leaf of another worker has history here and none there.
        roots = [
            end.sum() for end, index in zip(ends, last, strict=True) if spread.values[index][1].grad_fn is not None
        ]
        for _ in range(times if roots else 0):
            home.autograd.backward(context.id, roots, True)
        found = [world[place].autograd.contexts.find(context.id) for place in program.leaves]
        assert all(leaf.grad is None for leaf in leaves), "gradients must not reach .grad"
        return [
            None if one is None else one.gradients().get(leaf) for one, leaf in zip(found, leaves, strict=True)
        ], seen
    finally:
        home.autograd.leave(context.id)


def same(ours: torch.Tensor | None, torchs: torch.Tensor | None) -> bool:
    if ours is None or torchs is None:
        return ours is torchs
    return torch.allclose(ours, torchs, rtol=1e-10, atol=1e-12)


def check(world: World, program: Program, times: int) -> None:
    ours, seen_by_us = run_spread(world, program, times)
    torchs, seen_by_torch = run_here(program, times)
    assert [one is None for one in ours] == [one is None for one in torchs]
    assert all(same(one, other) for one, other in zip(ours, torchs, strict=True)), (ours, torchs)
    assert {name: len(grads) for name, grads in seen_by_us.grads.items()} == {
        name: len(grads) for name, grads in seen_by_torch.grads.items()
    }
    for name, grads in seen_by_torch.grads.items():
        assert all(same(one, other) for one, other in zip(seen_by_us.grads[name], grads, strict=True)), name


def test_a_random_program_has_the_gradients_and_hook_calls_of_one_process(world: World) -> None:
    @settings(max_examples=150)
    @given(programs)
    def explore(program: Program) -> None:
        check(world, program, times=1)

    explore()


def test_gradients_of_repeated_passes_add_up(world: World) -> None:
    @settings(max_examples=30)
    @given(programs)
    def explore(program: Program) -> None:
        check(world, program, times=3)

    explore()
