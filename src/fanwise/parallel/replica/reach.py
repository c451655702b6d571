"""What the shards of a step may use besides its model: found by reading what the loss function, or a loop, names.

run.step(model, optimizer, loss_fn)     model, loss_fn                       once
for ... in step.shards(batch)           model, the function of the loop      as its local variables come
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..inspecting.compiled import Compiled, compiled_parts
from ..inspecting.reached import Root, modules_reached, reached


@dataclass(frozen=True, slots=True)
class Reach:
    """`modules`: by their names in messages, the model is "". `others`: the parameters of these, without the model's,
    and those that are named by themselves.
    """

    modules: dict[str, nn.Module]
    others: list[Tensor]
    compiled: Compiled

    def and_also(self, name: str, other: "Reach") -> "Reach":
        """Both. `name`: told of a module of the other one where two have one name."""
        modules, known = dict(self.modules), set(map(id, self.modules.values()))
        for path, module in other.modules.items():
            if id(module) not in known:
                modules[f"{name}.{path}" if path in modules else path] = module
        others = {id(each): each for each in (*self.others, *other.others)}
        compiled = Compiled(
            self.compiled.any_part or other.compiled.any_part, self.compiled.by_shape or other.compiled.by_shape
        )
        return Reach(modules, list(others.values()), compiled)


def reach_of(model: nn.Module, roots: Sequence[Root], also: Sequence[nn.Module] = ()) -> Reach:
    """Of a model, and what else names what a shard uses. `also`: modules that nothing leads to."""
    own = {id(module) for module in model.modules()}
    found: dict[str, nn.Module] = {f"also[{place}]": module for place, module in enumerate(also)}
    for root in (*roots, model):
        found |= modules_reached(root)
    modules = {"": model} | {name: module for name, module in found.items() if id(module) not in own}
    params = {id(param) for param in model.parameters()}
    others: dict[int, Tensor] = {id(each): each for module in modules.values() for each in module.parameters()}
    named = [each.value for root in (*roots, model) for each in reached(root)]
    others |= {id(each): each for each in named if isinstance(each, Tensor) and each.is_leaf and each.requires_grad}
    return Reach(
        modules,
        [each for key, each in others.items() if key not in params],
        compiled_parts(modules, roots),
    )
