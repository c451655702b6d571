"""What the body of a loop over shards must leave alone: each process executes its own shards of a batch only.

    for x in step.shards(batch):
        step.backward(...)
        average.update_parameters(model)      refused: once a shard, in each process as often as it has shards

Values are compared, in the batches in which everything is looked for: a change that is taken back is none.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Untouched:
    """The parameters of modules, by name, as they were when this was made; whether they are frozen."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._params: dict[str, tuple[Tensor, Tensor, bool]] = {}
        for prefix, module in modules.items():
            for name, param in module.named_parameters(prefix=prefix):
                self._params[name] = param, param.detach().clone(), param.requires_grad

    def check(self) -> None:
        """Raises ValueError for one that has changed, which is then as it was."""
        for name, (param, before, requires_grad) in self._params.items():
            if param.requires_grad != requires_grad:
                param.requires_grad_(requires_grad)
                raise ValueError(
                    f"the body of a loop over step.shards(batch) has {'frozen' if requires_grad else 'thawed'} "
                    f"{name!r}: the next shard would find it so, if this process has another one.\n"
                    f"  wrong:  for x in step.shards(batch): ...; model.requires_grad_(False)\n"
                    f"  right:  model.requires_grad_(False), before or after the loop"
                )
            # A training that diverges has parameters that are NaN.
            if not torch.allclose(param, before, rtol=0, atol=0, equal_nan=True):
                with torch.no_grad():
                    param.copy_(before)
                raise ValueError(
                    f"the body of a loop over step.shards(batch) has changed the parameter {name!r}: each process "
                    f"executes its own shards only, so it would become something else in each.\n"
                    f"  wrong:  for x in step.shards(batch): step.backward(...); average.update_parameters(model)\n"
                    f"  right:  for x in step.shards(batch): step.backward(...)\n"
                    f"          step.update(); average.update_parameters(model)"
                )
