"""Programs that need their own process: no JAX, several devices, and the end of a process.

One process loads all engines, which takes longer than all that is tried. Each program is a fork of it, made before an
engine has started a thread; that without JAX is made before JAX is loaded. Loaded modules are excluded from garbage
collection, so that forks do not copy them.
"""

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

NOT_INSTALLED = """
import importlib.abc, struct
from fanwise.base.errors import NotInstalled
from fanwise.tensor import from_wire

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('jax', 'jaxlib'):
            raise ModuleNotFoundError(f'no module named {name}')

def hide_by_a_hook():
    sys.meta_path.insert(0, Hidden())

def hide_by_none():
    sys.meta_path.pop(0)
    sys.modules['jax'] = None

assert 'jax' not in sys.modules
header = bytes([0xFA, 1, 3, 17, 0, 1, 0, 0]) + struct.pack('<q', 2)
for hide in (hide_by_a_hook, hide_by_none):
    hide()
    try:
        from_wire(header, [bytearray(8)])
    except NotInstalled as error:
        assert "'fanwise[jax]'" in str(error) and "engine='numpy'" in str(error) and "to_numpy" in str(error), error
    else:
        raise AssertionError('read')
    assert from_wire(header, [bytearray(8)], engine='numpy').tolist() == [0, 0]
    assert from_wire(header, [bytearray(8)], engine='torch').tolist() == [0, 0]
print('refused twice')
"""

SEVERAL_DEVICES = """
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=3'
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from fanwise.tensor import convert, from_wire, same_memory, to_numpy, to_wire
x = np.arange(6, dtype='float32')
one, two, three = jax.devices()
assert convert(x, 'jax').devices() == {one}
with jax.default_device(two):
    y = convert(x, 'jax')
assert y.devices() == {two} and same_memory(to_numpy(y), y)
with jax.default_device('cpu'):
    assert convert(x, 'jax').devices() == {one}
z = convert(x, 'jax', device='cpu:2')
assert z.devices() == {three}
assert convert(z, 'jax', copy=True).devices() == {three}
header, buffers = to_wire(z)
assert from_wire(header, buffers).devices() == {one} and from_wire(header, buffers, device='cpu:1').devices() == {two}
(convert(x, 'jax') + z).block_until_ready()  # bound to no device, so it moves to where the other is
spread = jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()), ('a',)), PartitionSpec('a')))
view = to_numpy(spread)
assert view.tolist() == x.tolist()
try:
    view.flags.writeable = True
except ValueError:
    pass
else:
    raise AssertionError('the flag was lifted')
try:
    to_numpy(spread, copy=False)
except ValueError as error:
    assert 'not one piece' in str(error)
else:
    raise AssertionError('shared')
"""

A_COMMON_ACCELERATOR = """
# Main memory plays two accelerators that both engines have, and a third that JAX cannot use.
from types import SimpleNamespace
import jax
from fanwise.tensor.adapters import exchanges

there, went, moved = 'cuda:0', [], []

def by_main_memory(x, copy, export=exchanges['torch'].export_memory):
    went.append('main memory')
    return export(x, copy)

def move(x, device):
    moved.append(device)
    return x if device == there else x.copy()

def played(part, **told):
    return SimpleNamespace(**{**vars(part), **told})

exchanges['torch'] = played(exchanges['torch'], accelerator_of=lambda x: there, export_memory=by_main_memory)
exchanges['jax'] = played(exchanges['jax'], devices=lambda: ['cpu', 'cuda:0', 'cuda:1'], move=move)

def converted(x=convert(aligned(8), 'torch'), **asked):
    went.clear()
    moved.clear()
    return convert(x, 'jax', **asked)

converted()
assert (went, moved) == ([], ['cuda:0'])  # it stays
converted(device='gpu')
assert (went, moved) == ([], ['cuda:0'])
converted(device='cuda:1')
assert (went, moved) == ([], ['cuda:1'])
converted(device='cpu')
assert (went, moved) == (['main memory'], ['cpu'])
converted(np.ones(2, 'float32'))
assert (went, moved) == ([], [])  # numpy has nothing there

x = convert(aligned(8), 'torch')
y = converted(x, copy=False)
assert went == [] and same_memory(y, x)
for asked in ({}, {'copy': True}):
    y = converted(x, **asked)
    assert went == [] and not same_memory(y, x)
try:
    converted(x, copy=False, device='cuda:1')
except ValueError as error:
    assert 'has to be moved to cuda:1' in str(error)
else:
    raise AssertionError('shared')

exchanges['jax'] = played(exchanges['jax'], from_dlpack=lambda lent, copy: None)
y = converted(x)
assert (went, moved, y.tolist()) == (['main memory'], ['cuda:0'], [0] * 8)  # by a detour, but it ends there
there = 'cuda:2'
converted(x)
assert (went, moved) == (['main memory'], [])
"""

THE_END = """
# The first conversions of a process may be those inside of a traced function.
ones = np.ones(3, 'float32')
assert jax.jit(lambda x: x + convert(ones, 'jax'))(ones).tolist() == [2, 2, 2]
assert tensorflow.function(lambda x: x + convert(ones, 'tensorflow'))(ones).numpy().tolist() == [2, 2, 2]
for engine in ('jax', 'tensorflow'):
    assert to_numpy(convert(ones, engine)).tolist() == [1, 1, 1]
add = jax.jit(lambda x: x + 1, donate_argnums=0)
kept = []
for engine in ('torch', 'jax', 'tensorflow'):
    for copy in (None, False):
        x = convert(aligned(1000), engine, copy)
        y = convert(x, 'jax', copy)
        kept += [x, y, convert(y, 'tensorflow', copy), add(convert(x, 'jax', copy))]
print(len(kept))
"""

BEFORE_JAX = {"not installed": NOT_INSTALLED}
PROGRAMS = {
    "devices": SEVERAL_DEVICES,
    "accelerator": A_COMMON_ACCELERATOR,
    "end": THE_END,
}

LOADED = """
import gc
gc.disable()  # collecting loaded modules repeatedly takes seconds

import json, os, sys, warnings
import numpy as np
import torch
from fanwise.tensor import aligned_buffer, convert, from_wire, same_memory, to_numpy, to_wire
from fanwise.tensor.namespaces import namespace

def aligned(length):
    return np.frombuffer(aligned_buffer(4 * length), 'float32')

statuses = {}

def forked(programs):
    # In the process of a program: its text. Here, when all have ended: None.
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would not be safe"
    gc.freeze()
    for name, program in json.loads(programs).items():
        pid = os.fork()
        if pid == 0:
            for number, what in ((1, "out"), (2, "err")):
                file = os.open(f"{name}.{what}", os.O_WRONLY | os.O_CREAT)
                os.dup2(file, number)
                os.close(file)
            gc.enable()
            return program
        statuses[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def load_all():
    namespace("tensorflow").sum
    global jax, tensorflow
    import jax, tensorflow
    warnings.filterwarnings("ignore", "os.fork.. was called")  # JAX warns of its threads: there are none yet

program = forked(sys.argv[1])
if program is None:
    load_all()
    program = forked(sys.argv[2])
if program is None:
    program = "print(json.dumps(statuses))"
exec(program)
"""


class Finished(NamedTuple):
    """Exit status, standard output and standard error of a program."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """Return the result of each program."""
    folder = tmp_path_factory.mktemp("programs")
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(BEFORE_JAX), json.dumps(PROGRAMS)],
        # Importing numpy starts threads of OpenBLAS otherwise, and TensorFlow one of pyarrow's allocator.
        env={**quiet, "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert loaded.returncode == 0, loaded.stderr
    results = {}
    for name, status in json.loads(loaded.stdout).items():
        results[name] = Finished(status, *((folder / f"{name}.{what}").read_text() for what in ("out", "err")))
    return results


def test_an_error_names_the_extra_of_a_missing_engine(
    finished: dict[str, Finished],
) -> None:
    done = finished["not installed"]
    assert (done.status, done.out.strip()) == (0, "refused twice"), done.err


def test_jax_uses_its_default_device_and_gathers_sharded_arrays(
    finished: dict[str, Finished],
) -> None:
    assert finished["devices"].status == 0, finished["devices"].err


def test_an_array_on_a_shared_accelerator_stays_there_by_default(finished: dict[str, Finished]) -> None:
    assert finished["accelerator"].status == 0, finished["accelerator"].err


def test_the_process_ends_without_an_abort(finished: dict[str, Finished]) -> None:
    done = finished["end"]
    assert (done.status, done.out.strip()) == (0, "24"), done.err
