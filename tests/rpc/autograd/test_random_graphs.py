"""Random programs on four workers have the same gradients and hook calls as in one process with torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_workers import World

from fanwise.rpc.autograd.contexts import Context

WorkerId = int
NUM_WORKERS = 4


@dataclass(frozen=True)
class Step:
    """One operation on a worker. Operands are earlier values, counted backwards modulo their number."""

    op: str
    worker: WorkerId
    operands: tuple[int, int]
    in_one_message: bool = False  # both operands in one message
    resend: bool = False  # send values again that the worker already has
    hook: bool = False


@dataclass
class Program:
    """Leaves and steps on workers. The last `num_roots` values are the roots."""

    leaves: Sequence[WorkerId]
    hooked_leaves: frozenset[int]
    steps: Sequence[Step]
    num_roots: int


steps = st.builds(
    Step,
    op=st.sampled_from(["mul", "add", "sin", "matmul", "unbind", "drop", "double_in_place", "cut"]),
    worker=st.integers(0, NUM_WORKERS - 1),
    operands=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    in_one_message=st.booleans(),
    resend=st.booleans(),
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
class HookCalls:
    """The gradients that hooks received, by name of the tensor."""

    grads: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def watch(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.requires_grad:
            grads = self.grads.setdefault(name, [])
            tensor.register_hook(lambda grad: grads.append(grad.clone()))  # type: ignore[no-untyped-call]  # torch's


def leaves_of(program: Program, calls: HookCalls) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    leaves = [torch.rand(2, 2, dtype=torch.float64, generator=generator).requires_grad_() for _ in program.leaves]
    for index in program.hooked_leaves:
        if index < len(leaves):
            calls.watch(leaves[index], f"leaf {index}")
    return leaves


def run_locally(program: Program, times: int) -> tuple[list[torch.Tensor | None], HookCalls]:
    calls = HookCalls()
    leaves = leaves_of(program, calls)
    values = list(leaves)
    for number, step in enumerate(program.steps):
        x, y = (values[-1 - operand % len(values)] for operand in step.operands)
        values.append(computed(step.op, x, y))
        if step.hook:
            calls.watch(values[-1], f"step {number}")
    roots = [value.sum() for value in values[-program.num_roots :] if value.grad_fn is not None]
    for _ in range(times if roots else 0):
        torch.autograd.backward(roots, retain_graph=True)
    return [leaf.grad for leaf in leaves], calls


@dataclass
class DistributedProgram:
    """The values of the program on their workers, and the copies that were sent."""

    world: World
    home: WorkerId
    context: Context
    values: list[tuple[WorkerId, torch.Tensor]]
    copies: dict[tuple[int, WorkerId], torch.Tensor] = field(default_factory=dict)

    def fetch(self, indices: Sequence[int], worker: WorkerId, resend: bool) -> None:
        """Send values of one worker to another in one message, unless they are there."""
        for source in {self.values[index][0] for index in indices} - {worker}:
            sent = [index for index in indices if self.values[index][0] == source]
            missing = [index for index in sent if resend or (index, worker) not in self.copies]
            if missing:
                if self.world[source].autograd.contexts.find(self.context.id) is None:
                    self.world.send(self.context.id, self.home, source, [])  # as a call would do
                tensors = [self.values[index][1] for index in missing]
                received = self.world.send(self.context.id, source, worker, tensors)
                self.copies.update({(index, worker): one for index, one in zip(missing, received, strict=True)})

    def at(self, index: int, worker: WorkerId) -> torch.Tensor:
        home, value = self.values[index]
        return value if home == worker else self.copies[index, worker]


def run_distributed(world: World, program: Program, times: int) -> tuple[list[torch.Tensor | None], HookCalls]:
    calls = HookCalls()
    leaves = leaves_of(program, calls)
    home = world[program.steps[-1].worker]
    context = home.autograd.new_context()
    try:
        distributed = DistributedProgram(world, home.id, context, list(zip(program.leaves, leaves, strict=True)))
        for number, step in enumerate(program.steps):
            count = len(distributed.values)
            indices = [count - 1 - operand % count for operand in step.operands]
            for group in [indices] if step.in_one_message else [[index] for index in indices]:
                distributed.fetch(group, step.worker, step.resend)
            x, y = (distributed.at(index, step.worker) for index in indices)
            distributed.values.append((step.worker, computed(step.op, x, y)))
            if step.hook:
                calls.watch(distributed.values[-1][1], f"step {number}")
        last = range(len(distributed.values))[-program.num_roots :]
        distributed.fetch(last, home.id, resend=False)
        ends = [distributed.at(index, home.id) for index in last]
        # A received leaf has history here, and none on its worker.
        roots = [
            end.sum() for end, index in zip(ends, last, strict=True) if distributed.values[index][1].grad_fn is not None
        ]
        for _ in range(times if roots else 0):
            home.autograd.backward(context.id, roots, True)
        contexts = [world[worker].autograd.contexts.find(context.id) for worker in program.leaves]
        assert all(leaf.grad is None for leaf in leaves), "gradients must not reach .grad"
        return [
            None if one is None else one.gradients().get(leaf) for one, leaf in zip(contexts, leaves, strict=True)
        ], calls
    finally:
        home.autograd.leave(context.id)


def same(actual: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if actual is None or expected is None:
        return actual is expected
    return torch.allclose(actual, expected, rtol=1e-10, atol=1e-12)


def check(world: World, program: Program, times: int) -> None:
    actual, our_calls = run_distributed(world, program, times)
    expected, torch_calls = run_locally(program, times)
    assert [one is None for one in actual] == [one is None for one in expected]
    assert all(same(one, other) for one, other in zip(actual, expected, strict=True)), (actual, expected)
    assert {name: len(grads) for name, grads in our_calls.grads.items()} == {
        name: len(grads) for name, grads in torch_calls.grads.items()
    }
    for name, grads in torch_calls.grads.items():
        assert all(same(one, other) for one, other in zip(our_calls.grads[name], grads, strict=True)), name


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
