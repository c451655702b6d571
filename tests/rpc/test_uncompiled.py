"""Training across workers loads nothing of torch's compiler, and steps as torch's own optimizers do.

In a fresh interpreter: the tests' own has loaded the compiler, as torch's optimizers do when they are first used.
"""

import json
from pathlib import Path

from program_runs import run_program

PROGRAM = """
import json, sys
import torch
import fanwise.rpc as rpc
from fanwise.rpc import autograd, uncompiled
from fanwise.rpc.optim import DistributedOptimizer
from torch.optim import Optimizer

class Descent:
    __slots__ = ("lr", "params")

    def __init__(self, params, lr):
        self.params, self.lr = params, lr

    @torch.no_grad()
    def step(self):
        for param in self.params:
            param -= self.lr * param.grad

CLASSES = [Descent, torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adafactor]

def loss_of(weight):
    return (weight * weight.cos()).sum()

def spread(optimizer_class):
    weight = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
    optimizer = DistributedOptimizer(optimizer_class, [rpc.RRef(weight)], lr=0.1)
    for _ in range(3):
        with autograd.context() as context_id:
            autograd.backward(context_id, [rpc.rpc_sync("alone", loss_of, args=(weight,))])
            optimizer.step(context_id)
    return weight

def here(optimizer_class):
    weight = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
    optimizer = optimizer_class([weight], lr=0.1)
    for _ in range(3):
        weight.grad = None
        loss_of(weight).backward()
        optimizer.step()
    return weight

def loaded():
    return [name for name in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy") if name in sys.modules]

rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method="file:///a"))
spread_out = [spread(each) for each in CLASSES]
hooked = uncompiled.create(torch.optim.SGD, [torch.ones(1, requires_grad=True)], lr=0.1)
found = {"loaded": loaded(), "left": sorted(vars(Optimizer.add_param_group.__wrapped__))}
called = []
hooked.register_step_post_hook(lambda *_: called.append(1))
uncompiled.step(hooked)
found["hooks"] = called
found["same"] = [torch.equal(one, here(each)) for one, each in zip(spread_out, CLASSES)]
found["torchs way"] = loaded()[:1]
rpc.shutdown()
print(json.dumps(found))
"""


def test_training_loads_no_compiler_and_steps_with_the_same_bits(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = run_program([str(script)], folder=tmp_path)
    assert done.status == 0, done.said
    assert json.loads(done.out) == {
        "loaded": [],
        "left": [],
        "hooks": [1],
        "same": [True] * 6,
        "torchs way": ["torch._dynamo"],
    }
