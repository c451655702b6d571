"""Arrays of JAX and TensorFlow over real links: adopted where they came in, an error where they cannot be read."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from late import Late
from listeners import EchoServer

from fanwise.base.errors import NotInstalled
from fanwise.links import codec
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.transports.unix import link_pair
from fanwise.tensor import engine_of, same_memory, to_numpy

jax, jnp, tf = Late("jax"), Late("jax.numpy"), Late("tensorflow")
pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")

LIMIT_S = 20.0
# Any throughout: arrays of both engines.
MAKE: dict[str, Any] = {
    "jax": lambda size: jnp.arange(size, dtype="float32"),
    "tensorflow": lambda size: tf.range(size * 1.0),
}
# Through the socket, and through shared memory.
SIZES = [3, 5000, 1 << 20]

HIDDEN = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('jax', 'jaxlib', 'tensorflow'):
            raise ModuleNotFoundError(f'no module named {name}')
sys.meta_path.insert(0, Hidden())
from pathlib import Path
from fanwise.links.hub import Hub
from fanwise.links.transports.unix import dial
hub = Hub(name='child')
link = dial(hub, Path(sys.argv[1]), bytes.fromhex(sys.argv[2]))
link.handler = lambda request: request.answer(request.args)
link.open()
hub.run(until=lambda: link.ending is not None)
"""


@pytest.mark.parametrize("engine", MAKE)
@pytest.mark.parametrize("size", SIZES)
def test_arrays_come_back_as_they_were(near: Link, engine: str, size: int) -> None:
    for _ in range(3):  # shared memory is agreed on with the first big one
        x = MAKE[engine](size)
        ((y, nested),) = near.ask("echo", (x, {"a": [x]}), within_s=LIMIT_S)
        assert engine_of(y) == engine
        assert nested["a"][0] is y
        assert np.array_equal(to_numpy(y), to_numpy(x))


@pytest.mark.parametrize("engine", MAKE)
@pytest.mark.parametrize("size", SIZES[1:])
def test_a_received_array_lies_where_it_was_received(near: Link, engine: str, size: int) -> None:
    places: list[int] = []

    def loads(head: codec.Buffer, buffers: Sequence[memoryview] = ()) -> Any:
        places.extend(np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers)
        return codec.loads(head, buffers)

    near.loads = loads
    arrays = [near.ask("echo", MAKE[engine](size), within_s=LIMIT_S)[0] for _ in range(4)]
    assert [to_numpy(y).ctypes.data for y in arrays] == places
    # Later arrays did not reuse the memory of arrays that are still alive.
    assert len(set(places)) == 4
    assert all(np.array_equal(to_numpy(y), to_numpy(MAKE[engine](size))) for y in arrays)


@pytest.mark.parametrize("engine", MAKE)
def test_within_a_process_the_receiver_gets_memory_of_its_own(engine: str) -> None:
    with_hub = Hub(name="near"), Hub(name="far")
    near, far = link_pair(*with_hub)
    got: list[Any] = []

    def handler(request: Request) -> None:
        got.append(request.args[0])
        request.answer(None)

    far.handler = handler
    with_hub[1].start()
    near.open()
    far.open()
    x = MAKE[engine](5000)
    near.ask("take", x, within_s=LIMIT_S)
    for hub in with_hub:
        hub.close()
    assert np.array_equal(to_numpy(got[0]), to_numpy(x))
    assert not same_memory(got[0], x)


def test_numbers_that_the_receiver_would_narrow_are_an_error_for_the_caller(near: Link) -> None:
    with jax.enable_x64(True):
        x = jnp.arange(5000, dtype="float64")
        with pytest.raises(TypeError, match=r"of float64.*jax_enable_x64"):
            near.ask("echo", x, within_s=LIMIT_S)  # this setting holds for this thread only
    assert near.ask("echo", 1, within_s=LIMIT_S) == (1,)


@pytest.mark.parametrize("engine", MAKE)
def test_a_peer_without_the_engine_says_what_to_install_and_the_link_goes_on(server: EchoServer, engine: str) -> None:
    arguments = [sys.executable, "-c", HIDDEN, str(server.path), server.key.hex()]
    child = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        link = server.link()
        for size in (3, 5000):
            with pytest.raises(NotInstalled, match=rf"{engine} is not installed.*'fanwise\[{engine}\]'.*to_numpy"):
                link.ask("echo", {"x": [MAKE[engine](size)]}, within_s=LIMIT_S)
        (y,) = link.ask("echo", to_numpy(MAKE[engine](5000)), within_s=LIMIT_S)
        assert y.sum() == 12497500
    finally:
        child.kill()
        child.wait()
