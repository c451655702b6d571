"""Serialization of calls, which are unpacked in new interpreters, and errors with the path to an unsendable object."""

import functools
import importlib.util
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import torch

import fanwise.pool.functions
from fanwise.base.errors import NotSendableError
from fanwise.pool.functions import name_of, pack, unpack_arguments, unpack_function

SOURCES = Path(fanwise.pool.functions.__file__).parents[2]

CALL = """
import sys
from pathlib import Path
from fanwise.pool.functions import unpack_arguments, unpack_function
args, kwargs = unpack_arguments(Path(sys.argv[2]).read_bytes())
print(unpack_function(Path(sys.argv[1]).read_bytes())(*args, **kwargs))
"""


def output_of_python(code: str, *args: Path, cwd: Path) -> str:
    """Return the output of a new interpreter that can import the library, but not these tests."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, cwd=cwd, env={"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def call_in_new_interpreter(folder: Path, function: Callable[..., object], *args: object, **kwargs: object) -> str:
    packed = pack(function, args, kwargs)
    (folder / "function").write_bytes(packed.function)
    (folder / "arguments").write_bytes(packed.arguments)
    return output_of_python(CALL, folder / "function", folder / "arguments", cwd=folder)


FACTOR = 3


class Scaled:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, value: int) -> int:
        return value * self.by

    def method(self, value: int) -> int:
        return value * self.by


def test_a_local_function_is_sent_with_closure_defaults_and_globals(tmp_path: Path) -> None:
    offset = 10

    def objective(value: int, scale: int = 2, *, extra: int = 100) -> int:
        inner = [item * FACTOR for item in [value]]
        return inner[0] * scale + offset + extra

    assert call_in_new_interpreter(tmp_path, objective, 4) == "134"
    assert call_in_new_interpreter(tmp_path, objective, 4, extra=0) == "34"


def test_lambdas_partials_recursive_functions_and_local_classes_are_sent_by_value(tmp_path: Path) -> None:
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    class Multiplier:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def times(self, value: int) -> int:
            return value * self.factor

    functions: list[Callable[[int], int]] = [functools.partial(lambda x, y: x - y, y=2), factorial, Multiplier(4).times]
    assert call_in_new_interpreter(tmp_path, lambda value: [call(value) for call in functions], 5) == "[3, 120, 20]"


def test_functions_of_a_script_are_sent_by_value(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import json
        from pathlib import Path
        from fanwise.pool.functions import pack

        BASE = 40

        class Point:
            def __init__(self, x):
                self.x = x

        def helper(point):
            return json.dumps({"x": point.x + BASE})

        def objective(x):
            return helper(Point(x))

        packed = pack(objective, (2,))
        Path("function").write_bytes(packed.function)
        Path("arguments").write_bytes(packed.arguments)
        """)
    )
    output_of_python("import runpy; runpy.run_path('script.py', run_name='__main__')", cwd=tmp_path)
    (tmp_path / "script.py").unlink()
    assert output_of_python(CALL, tmp_path / "function", tmp_path / "arguments", cwd=tmp_path) == '{"x": 42}'


def test_importable_functions_are_sent_by_name() -> None:
    packed = pack(textwrap.dedent, ("text",))
    assert len(packed.function) < 60
    assert unpack_function(packed.function) is textwrap.dedent
    assert (packed.name, packed.modules) == ("dedent", ("textwrap",))


def test_a_packed_call_has_name_modules_and_id() -> None:
    def objective(value: int) -> Any:
        import csv

        return csv, value

    packed = pack(objective, (1,), {"value": 2})
    assert unpack_arguments(packed.arguments) == ((1,), {"value": 2})
    assert packed.name == "objective"
    assert packed.modules == ("csv",)
    assert packed.function_id == pack(objective, (5,)).function_id
    assert len(packed.function_id) == 64


def test_modules_of_functions_among_the_arguments_are_included() -> None:
    def apply(function: Callable[[], Any], *, after: Callable[[], Any] | None = None) -> Any:
        return function(), after

    def reads() -> Any:
        import csv

        return csv

    def loads() -> Any:
        import json

        return json

    plain, read = pack(apply, (3,)), pack(apply, (reads,))
    assert (plain.modules, read.modules) == ((), ("csv",))
    assert pack(apply, (reads,), {"after": functools.partial(loads)}).modules == ("csv", "json")
    # The modules are part of the id, because a process may have imported those of one call only.
    assert plain.function_id == pack(apply, (4,)).function_id != read.function_id
    assert read.function_id == pack(apply, (reads, 4)).function_id


def test_tensors_in_host_memory_can_be_sent() -> None:
    weights = torch.arange(3.0)
    packed = pack(lambda: weights.sum().item(), (weights,))
    assert unpack_function(packed.function)() == 3.0
    assert unpack_arguments(packed.arguments)[0][0].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (len, "len"),
        (Scaled, "Scaled"),
        (Scaled(2), "Scaled"),
        (Scaled(2).method, "Scaled.method"),
        (functools.partial(functools.partial(len)), "len"),
        (lambda: None, "<lambda>"),
    ],
)
def test_names_are_short(function: Callable[..., Any], name: str) -> None:
    assert name_of(function) == name


# -- errors -----------------------------------------------------------------------------------------------------------


def refused(function: Callable[..., Any], *args: object, **kwargs: object) -> str:
    with pytest.raises(NotSendableError) as caught:
        pack(function, args, kwargs)
    assert caught.value.__cause__ is not None
    return str(caught.value)


def test_a_lock_in_the_closure_is_named() -> None:
    lock = threading.Lock()

    def objective() -> bool:
        return lock.locked()

    assert refused(objective) == (
        "objective cannot be sent to a worker: objective -> closure variable 'lock' -> a _thread.lock\n"
        "(TypeError: cannot pickle '_thread.lock' object). Create it inside the function: a job has its own "
        "process, where a lock of this process has no effect. See: fanwise explain not-sendable"
    )


@dataclass
class Store:
    name: str = "store"
    table: dict[str, list[object]] = field(default_factory=dict)


def test_the_path_leads_through_functions_to_the_variable() -> None:
    store = Store(table={"good": [1, 2], "bad": [0, (1, threading.Lock())]})

    def inner() -> object:
        return store.table

    def objective() -> object:
        return inner()

    path = "objective -> closure variable 'inner' -> closure variable 'store' -> a _thread.lock\n"
    assert path in refused(objective)


def function_in_a_script(text: str) -> Callable[..., Any]:
    """The function `objective` of a module that cannot be imported, like `__main__`."""
    module = ModuleType("__main__")
    exec(textwrap.dedent(text), vars(module))
    function: Callable[..., Any] = vars(module)["objective"]
    return function


def test_the_path_contains_globals_and_defaults() -> None:
    script = """
    import threading
    lock, fine = threading.Lock(), 3
    def helper():
        return [lock for _ in range(fine)]
    def objective():
        return helper()
    """
    path = "objective -> global variable 'helper' -> global variable 'lock' -> a _thread.lock\n"
    assert path in refused(function_in_a_script(script))
    lock = threading.Lock()

    def by_default(x: int = 1, guard: Any = lock) -> None: ...

    def by_keyword(*, guard: Any = lock) -> None: ...

    cases: list[tuple[Callable[..., Any], str]] = [
        (by_default, "by_default -> default of 'guard' -> a _thread.lock\n"),
        (by_keyword, "by_keyword -> default of 'guard' -> a _thread.lock\n"),
        (functools.partial(dict, guard=lock), "dict -> argument 'guard' -> a _thread.lock\n"),
    ]
    for function, path in cases:
        assert path in refused(function)


def test_the_path_of_a_method_contains_its_object() -> None:
    class Holder:
        def __init__(self) -> None:
            self.guard = threading.Lock()

        def train(self) -> None: ...

    assert "Holder.train -> its object -> a _thread.lock\n" in refused(Holder().train)


def test_arguments_are_named_by_position_or_keyword() -> None:
    lock = threading.Lock()
    assert refused(len, 1, [lock]).startswith(
        "an argument of len cannot be sent to a worker: argument 2 of len -> a _thread.lock\n"
    )
    assert "argument 'data' of len -> a _thread.lock\n" in refused(len, 1, data={"x": lock})


def numbers() -> Iterator[int]:
    yield 1


def test_errors_of_streams_files_and_sockets_contain_advice(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("text")
    with path.open() as text, path.open("rb") as binary, socket.socket() as plug:
        assert f"a _io.TextIOWrapper ({str(path)!r})" in refused(len, text)
        assert "Pass its path, and open it inside the function." in refused(len, text)
        assert "a _io.BufferedReader" in refused(len, binary)
        assert "Connect inside the function." in refused(len, plug)
    assert "argument 1 of len -> a generator\n" in refused(len, numbers())
    assert "Pass a list" in refused(len, numbers())


class TensorOnGpu(torch.Tensor):
    """A tensor on a device that this machine may not have."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda:1")


def test_a_tensor_on_a_gpu_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("table", torch.zeros(2).as_subclass(TensorOnGpu))

    def objective() -> object:
        return model

    message = refused(objective)
    assert "objective -> closure variable 'model' -> a " in message
    assert "TensorOnGpu on cuda:1\n" in message
    assert "unpacking it would touch cuda:1). Pass it as .cpu()" in message
    assert "argument 1 of len -> " in refused(len, torch.zeros(2).as_subclass(TensorOnGpu))


class Irreducible:
    def __reduce__(self) -> str:
        raise RuntimeError("not me")


def test_an_object_that_cannot_be_reduced_is_named() -> None:
    assert "argument 1 of len -> a " in refused(len, {"a": Irreducible()})
    assert (
        "Irreducible\n(RuntimeError: not me). Create it inside the function, or pass the values to create it from."
        in refused(len, {"a": Irreducible()})
    )


@pytest.mark.parametrize(("result", "kind"), [(0.93, "a float"), (None, "None"), ("train", "a str")])
def test_a_result_instead_of_a_function_is_explained(result: Any, kind: str) -> None:
    with pytest.raises(TypeError) as caught:
        pack(result, caller="pool.submit")
    assert str(caught.value) == (
        f"pool.submit got a result ({kind}), not a function: was the function called here, in this process?\n"
        "  wrong:  pool.submit(train(3))\n"
        "  right:  pool.submit(train, 3)"
    )


async def coroutine() -> None: ...


async def takes(rate: float, size: int = 3) -> None: ...


async def stream() -> AsyncIterator[int]:
    yield 1


class AsyncCall:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (coroutine, "got coroutine, a coroutine function (async def)"),
        (functools.partial(coroutine), "got coroutine, a coroutine function"),
        (AsyncCall(), "got AsyncCall, a coroutine function"),
        (takes, "  right:  pool.submit(lambda *args, **kwargs: asyncio.run(takes(*args, **kwargs)))"),
        (numbers, "got numbers, a generator function (it has a yield)"),
        (stream, "got stream, a generator function"),
    ],
)
def test_functions_without_a_plain_result_are_refused(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        pack(function)
    assert text in str(caught.value)
    assert "  right:  pool.submit(lambda" in str(caught.value)


def test_functions_of_a_module_that_only_this_process_can_import_are_sent_by_value(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("FACTOR = 3\nclass Scaled:\n    def by(self, x):\n        return FACTOR * x\n")
    (tmp_path / "outer.py").write_text("def scaled(x):\n    return inner.Scaled().by(x)\n")
    inner, outer = (load_by_hand(f"by_hand.{name}", tmp_path / f"{name}.py") for name in ("inner", "outer"))
    vars(outer)["inner"] = inner
    try:
        assert call_in_new_interpreter(tmp_path, outer.scaled, 7) == "21"
        assert cloudpickle.list_registry_pickle_by_value() == set()
        assert "by_hand.outer" not in pack(outer.scaled).modules  # nothing to import before
    finally:
        del sys.modules["by_hand.inner"], sys.modules["by_hand.outer"]


def test_functions_of_a_shadowed_module_are_sent_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, value in (("found", 1), ("mine", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shadowed.py").write_text(f"def value():\n    return {value}\n")
    monkeypatch.syspath_prepend(tmp_path / "found")
    module = load_by_hand("shadowed", tmp_path / "mine" / "shadowed.py")
    try:
        assert call_in_new_interpreter(tmp_path, module.value) == "2"
    finally:
        del sys.modules["shadowed"]


def load_by_hand(name: str, path: Path) -> ModuleType:
    """Load a module like pytest in its mode `importlib`, by a name that cannot be imported."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_can_be_packed_while_another_thread_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # as it is at first
    assert pack(functools.partial(divmod, Path("a")), caller="a test").name == "divmod"
