"""JAX and TensorFlow in the collectives: on several CPU devices, which both can pretend to have.

How many must be said before an engine starts, so the tests are programs in a process of their own. It is one for all:
TensorFlow takes many seconds to load.
"""

import importlib.util
import json
from collections.abc import Mapping

import pytest

from fanwise.testing.programs import LoadedInterpreter

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(engine) for engine in ("jax", "tensorflow")), reason="needs jax and tensorflow"
)

JAX = """
import jax.numpy as xp
place = to_device

def make(values, number):
    return place(xp.asarray(values), DEVICES[number])
"""
TENSORFLOW = """
import tensorflow as xp

def make(values, number):
    return to_device(xp.constant(values), DEVICES[number])
"""
VARIABLES = TENSORFLOW + """
constant = make

def make(values, number):
    with xp.device("/" + DEVICES[number]):
        return xp.Variable(constant(values, number), trainable=False)
"""  # fmt: skip

PROGRAM = """
import numpy as np
from fanwise.parallel import all_gather, allreduce, broadcast, reduce_scatter, replicate, split_batch
from fanwise.tensor import device_of, to_device, to_numpy

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]
NAMES = ["cpu", "cpu:1", "cpu:2"]
{engine}

def check(arrays, expected):
    assert [device_of(x) for x in arrays] == NAMES, [device_of(x) for x in arrays]
    for x, y in zip(arrays, expected, strict=True):
        assert to_numpy(x, copy=True).tobytes() == y.tobytes() and tuple(x.shape) == y.shape, (x, y)

chance = np.random.default_rng(3)
for shape in [(5, 3), (2,), ()]:
    values = [chance.normal(size=shape).astype(np.float32) for _ in DEVICES]
    def arrays():
        return [make(value, number) for number, value in enumerate(values)]
    for how in ("root", "owner", "ring", "tree"):
        summed = allreduce([np.array(x) for x in values], how)
        before = arrays()
        after = allreduce(before, how)
        check(after, summed)
        assert [x is y for x, y in zip(before, after)] == [{in_place}] * 3
        if not {in_place}:
            check(before, values)
    check(broadcast(arrays(), root=1), [values[1]] * 3)
    if shape:
        scattered = reduce_scatter(arrays())
        check(scattered, reduce_scatter(values))
        check(all_gather(scattered), all_gather(reduce_scatter(values)))
        (parts,) = split_batch(make(values[0], 0), DEVICES)
        check(parts, split_batch(values[0], ["cpu"] * 3)[0])
    copies = replicate({{"w": make(values[0], 0)}}, DEVICES)
    check([copy["w"] for copy in copies], [values[0]] * 3)
    assert len({{type(copy["w"]) for copy in copies}} | {{type(make(values[0], 0))}}) == 1
    assert [getattr(copy["w"], "trainable", False) for copy in copies] == [False] * 3

try:
    split_batch(make(values[0].reshape(1), 0), ["cpu:7"])
except ValueError as error:
    assert "no device 'cpu:7' here, it has cpu, cpu:1, cpu:2" in str(error), error
    print("done")
"""

TRACED = """
import jax, jax.numpy as jnp, tensorflow as tf
from fanwise.parallel import allreduce
for traced, x, hint in ((jax.jit, jnp.ones(2), "jax.lax.psum"), (tf.function, tf.ones(2), "tf.function")):
    try:
        traced(lambda x: allreduce([x, x]))(x)
    except TypeError as error:
        assert "tensor 0 is being traced" in str(error) and hint in str(error), error
        print("refused")
x = tf.Variable([1.0])
try:
    allreduce([x, x])
except ValueError as error:
    assert "tensors 0 and 1 share memory" in str(error)
    print("refused")
"""


PROGRAMS = {
    "jax": PROGRAM.format(engine=JAX, in_place=False),
    "tf": PROGRAM.format(engine=TENSORFLOW, in_place=False),
    "tf-variables": PROGRAM.format(engine=VARIABLES, in_place=True),
    "traced": TRACED,
}
ALL = """
import contextlib, io, json, pathlib, sys, traceback
sys.modules["sklearn"] = None  # Keras would load it, for a second
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
said = {}
for name, program in json.loads(pathlib.Path("programs.json").read_text()).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(program, {})
        except Exception:
            traceback.print_exc(file=out)
    said[name] = out.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(torch_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What each of the programs has printed, or how it failed."""
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
    }
    folder = tmp_path_factory.mktemp("engines")
    (folder / "programs.json").write_text(json.dumps(PROGRAMS))
    (folder / "all.py").write_text(ALL)
    done = torch_loaded.run(folder / "all.py", folder=folder, environment=environment)
    assert done.status == 0, done.said
    found: Mapping[str, str] = json.loads(done.out)
    return found


@pytest.mark.parametrize("engine", ["jax", "tf", "tf-variables"])
def test_arrays_on_three_devices_are_summed_as_numpy_sums_them(engine: str, said: Mapping[str, str]) -> None:
    assert said[engine] == "done\n"


def test_what_is_traced_and_a_variable_given_twice_are_refused(said: Mapping[str, str]) -> None:
    assert said["traced"] == "refused\n" * 3
