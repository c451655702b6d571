"""Calls are packed here and unpacked in fresh interpreters; what cannot travel is named with the way to it."""

import functools
import importlib.util
import io
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


def run_python(code: str, *args: Path, cwd: Path) -> str:
    """What a fresh interpreter prints; it knows the library, and nothing of these tests."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, cwd=cwd, env={"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def call_elsewhere(folder: Path, function: Callable[..., object], *args: object, **kwargs: object) -> str:
    packed = pack(function, args, kwargs)
    (folder / "function").write_bytes(packed.function)
    (folder / "arguments").write_bytes(packed.arguments)
    return run_python(CALL, folder / "function", folder / "arguments", cwd=folder)


FACTOR = 3


class Scaled:
    """Importable here, so it would travel as a name."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, value: int) -> int:
        return value * self.by

    def method(self, value: int) -> int:
        return value * self.by


# -- what travels ------------------------------------------------------------------------------------------------------


def test_a_local_function_travels_with_its_closure_defaults_and_globals(tmp_path: Path) -> None:
    offset = 10

    def objective(value: int, scale: int = 2, *, extra: int = 100) -> int:
        inner = [item * FACTOR for item in [value]]
        return inner[0] * scale + offset + extra

    assert call_elsewhere(tmp_path, objective, 4) == "134"
    assert call_elsewhere(tmp_path, objective, 4, extra=0) == "34"


def test_lambdas_partials_and_recursion_travel(tmp_path: Path) -> None:
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert call_elsewhere(tmp_path, lambda x, y: x - y, 5, y=2) == "3"
    assert call_elsewhere(tmp_path, functools.partial(factorial, 5)) == "120"


def test_objects_of_local_classes_travel(tmp_path: Path) -> None:
    class Local:
        def __init__(self, by: int) -> None:
            self.by = by

        def times(self, value: int) -> int:
            return value * self.by

    assert call_elsewhere(tmp_path, Local(4).times, 5) == "20"


def test_functions_of_a_script_travel_by_value(tmp_path: Path) -> None:
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
    run_python("import runpy; runpy.run_path('script.py', run_name='__main__')", cwd=tmp_path)
    (tmp_path / "script.py").unlink()
    assert run_python(CALL, tmp_path / "function", tmp_path / "arguments", cwd=tmp_path) == '{"x": 42}'


def test_what_can_be_imported_travels_as_its_name() -> None:
    packed = pack(textwrap.dedent, ("text",))
    assert len(packed.function) < 60
    assert unpack_function(packed.function) is textwrap.dedent
    assert (packed.name, packed.modules) == ("dedent", ("textwrap",))


def test_a_call_is_described() -> None:
    def objective(value: int) -> Any:
        import csv

        return csv, value

    packed = pack(objective, (1,), {"value": 2})
    assert unpack_arguments(packed.arguments) == ((1,), {"value": 2})
    assert packed.name == "objective"
    assert packed.modules == ("csv",)
    assert packed.function_id == pack(objective, (5,)).function_id
    assert len(packed.function_id) == 64


def test_functions_among_the_arguments_bring_their_modules_along() -> None:
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
    # Who has imported what one call needs has not imported what the other one does.
    assert plain.function_id == pack(apply, (4,)).function_id != read.function_id
    assert read.function_id == pack(apply, (reads, 4)).function_id


def test_text_streams_in_memory_and_standard_output_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    stream, out = io.StringIO("text"), sys.stdout
    packed = pack(lambda: (stream.getvalue(), out))
    assert unpack_function(packed.function)() == ("text", sys.stdout)


def test_tensors_in_host_memory_travel() -> None:
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


# -- what does not travel ----------------------------------------------------------------------------------------------


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


def test_functions_are_followed_to_the_variable_that_holds_the_culprit() -> None:
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


def test_globals_defaults_and_attributes_are_on_the_way() -> None:
    script = """
    import threading
    lock, fine = threading.Lock(), 3
    def helper():
        return [lock for _ in range(fine)]
    def objective():
        return helper()
    """
    way = "objective -> global variable 'helper' -> global variable 'lock' -> a _thread.lock\n"
    assert way in refused(function_in_a_script(script))
    lock = threading.Lock()

    def by_default(x: int = 1, guard: Any = lock) -> None: ...

    def by_keyword(*, guard: Any = lock) -> None: ...

    cases: list[tuple[Callable[..., Any], str]] = [
        (by_default, "by_default -> default of 'guard' -> a _thread.lock\n"),
        (by_keyword, "by_keyword -> default of 'guard' -> a _thread.lock\n"),
        (functools.partial(dict, guard=lock), "dict -> argument 'guard' -> a _thread.lock\n"),
    ]
    for function, way in cases:
        assert way in refused(function)


def test_unused_globals_are_not_blamed() -> None:
    script = """
    import threading
    lock = threading.Lock()
    def objective(thing):
        return thing.lock
    """
    packed = pack(function_in_a_script(script), (Store(),))
    assert packed.name == "objective"


def test_methods_lead_to_their_object() -> None:
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


def test_streams_files_and_sockets_come_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("text")
    with path.open() as text, path.open("rb") as binary, socket.socket() as plug:
        assert f"a _io.TextIOWrapper ({str(path)!r})" in refused(len, text)
        assert "Pass its path, and open it inside the function." in refused(len, text)
        assert "a _io.BufferedReader" in refused(len, binary)
        assert "Connect inside the function." in refused(len, plug)
    assert "argument 1 of len -> a generator\n" in refused(len, numbers())
    assert "Pass a list" in refused(len, numbers())


class PretendsToBeOnGpu(torch.Tensor):
    """A tensor that names a device this machine need not have."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda:1")


def test_a_tensor_on_a_gpu_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("table", torch.zeros(2).as_subclass(PretendsToBeOnGpu))

    def objective() -> object:
        return model

    message = refused(objective)
    assert "objective -> closure variable 'model' -> a " in message
    assert "PretendsToBeOnGpu on cuda:1\n" in message
    assert "unpacking it would touch cuda:1). Pass it as .cpu()" in message
    assert "argument 1 of len -> " in refused(len, torch.zeros(2).as_subclass(PretendsToBeOnGpu))


class Stubborn:
    def __reduce__(self) -> str:
        raise RuntimeError("not me")


def test_an_object_that_refuses_is_the_culprit() -> None:
    assert "argument 1 of len -> a " in refused(len, {"a": Stubborn()})
    assert (
        "Stubborn\n(RuntimeError: not me). Create it inside the function, or pass the values to create it from."
        in refused(len, {"a": Stubborn()})
    )


# -- what is no function -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("result", "what"), [(0.93, "a float"), (None, "None"), ("train", "a str")])
def test_a_result_instead_of_a_function_is_explained(result: Any, what: str) -> None:
    with pytest.raises(TypeError) as caught:
        pack(result, caller="pool.submit")
    assert str(caught.value) == (
        f"pool.submit got a result ({what}), not a function: was the function called here, in this process?\n"
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


def test_functions_of_a_module_that_only_this_process_can_find_travel_by_value(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("FACTOR = 3\nclass Scaled:\n    def by(self, x):\n        return FACTOR * x\n")
    (tmp_path / "outer.py").write_text("def scaled(x):\n    return inner.Scaled().by(x)\n")
    inner, outer = (load_by_hand(f"by_hand.{name}", tmp_path / f"{name}.py") for name in ("inner", "outer"))
    vars(outer)["inner"] = inner
    try:
        assert call_elsewhere(tmp_path, outer.scaled, 7) == "21"
        assert cloudpickle.list_registry_pickle_by_value() == set()
        assert "by_hand.outer" not in pack(outer.scaled).modules  # nothing to import before
    finally:
        del sys.modules["by_hand.inner"], sys.modules["by_hand.outer"]


def test_a_function_whose_name_leads_another_process_to_another_file_travels_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, value in (("found", 1), ("mine", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shadowed.py").write_text(f"def value():\n    return {value}\n")
    monkeypatch.syspath_prepend(tmp_path / "found")
    module = load_by_hand("shadowed", tmp_path / "mine" / "shadowed.py")
    try:
        assert call_elsewhere(tmp_path, module.value) == "2"
    finally:
        del sys.modules["shadowed"]


def load_by_hand(name: str, path: Path) -> ModuleType:
    """As pytest loads test modules in its mode `importlib`: known by a name that leads nowhere."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_sent_while_another_thread_imports_torch_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # as it is at first
    assert pack(functools.partial(divmod, Path("a")), caller="a test").name == "divmod"
