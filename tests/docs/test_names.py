"""Everything of fanwise that the documents name exists: functions, methods, arguments, commands, options, files.

Python blocks are run by test_code_blocks.py. This test reads the code spans of text and tables, and the shell blocks.
"""

import ast
import builtins
import importlib
import importlib.util
import inspect
import re
import shlex
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from fanwise.cli.app import app
from fanwise.cli.explain import topics

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

MODULES = (
    *("tune", "tune.callbacks", "tune.simulate", "tune.rng", "parallel", "pool", "rpc", "rpc.optim", "rpc.nn"),
    *("plot", "zoo", "tensor", "tensor.engines", "testing", "errors"),
)
# The names that the documents use for modules and for objects of these classes.
ALIASES = {
    "fanwise": "fanwise",
    "fw": "fanwise",
    "ft": "fanwise.tensor",
    "rpc": "fanwise.rpc",
    "experiment": "fanwise.tune.Experiment",
    "tuner": "fanwise.tune.Tuner",
    "running": "fanwise.tune.RunningSearch",
    "search": "fanwise.tune.OpenSearch",
    "space": "fanwise.tune.Space",
    "observation": "fanwise.tune.Observation",
    "run": "fanwise.parallel.Run",
    "pool": "fanwise.pool.Pool",
    "job": "fanwise.pool.JobHandle",
    "outcome": "fanwise.pool.Outcome",
}
NOT_MODULES = ("fanwise.attempt", "fanwise.tune.events")  # a tag of MLflow, a logger
ARGUMENTS_OF_OTHERS = ("n_jobs", "logits", "capturable", "dynamic", "xp")

FENCED = re.compile(r"^([ ]*)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
# A table whose first column shows another library, without that column.
COMPARISON = re.compile(r"^\| *(?:in|with|there|the|torch|Syne Tune)\b[^|]*\|.*\n\|[-| :]+\n(?:\|.*\n)+", re.MULTILINE)
FILE = re.compile(r"(?<![\w/.])(?:benchmarks|examples|tests|docs|src)/[\w/.-]*\w\.\w+")
CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")


def wrong_names(page: str, library: str) -> Iterator[str]:
    for _, language, block in FENCED.findall(page):
        if language in ("sh", "text"):
            for line in block.replace("\\\n", " ").splitlines():
                yield from wrong_in_span(line, library) if line.startswith("fanwise ") else ()
    text = FENCED.sub("", page)
    for table in COMPARISON.findall(text):
        spans = [] if table.startswith("| the ") else SPAN.findall(re.sub(r"^\|[^|]*", "", table, flags=re.MULTILINE))
        yield from (span for span in spans if CLASS.fullmatch(span) and find(span) is None)
    for span in SPAN.findall(COMPARISON.sub(lambda table: re.sub(r"(?m)^\|[^|]*", "", table[0]), text)):
        yield from wrong_in_span(span, library)


def wrong_in_span(code: str, library: str) -> Iterator[str]:
    yield from (file for file in FILE.findall(code) if not (ROOT / file).exists())
    if code.startswith("fanwise "):
        yield from wrong_in_command(code)
    elif target := re.match(r"make ([\w-]+)", code):
        if f"\n{target[1]}:" not in (ROOT / "Makefile").read_text():
            yield code
    elif argument := re.match(r"([a-z]\w*)=[^=]*$", code):
        if not re.search(rf"\b{argument[1]}[:=]", library) and argument[1] not in ARGUMENTS_OF_OTHERS:
            yield code
    elif "/" not in code and not re.search(r"\.\w*(py|yaml|md)$", code):
        yield from wrong_in_expression(code)


def wrong_in_expression(code: str) -> Iterator[str]:
    try:
        tree = ast.parse(re.sub(r"=(?=[,)])", "=0", code))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
        if isinstance(node, ast.Attribute) and re.fullmatch(r"[.\w]+", name):
            if not name.startswith(NOT_MODULES) and not follow(name)[1]:
                yield name
        elif isinstance(node, ast.Call):
            function = find(name)
            if function is None and CLASS.fullmatch(name):
                yield name
            yield from (f"{word.arg}= of {name}" for word in node.keywords if not accepts(function, word.arg))


def find(name: str) -> object:
    """Return the object of a name, or None if it is neither one of fanwise nor a builtin."""
    if "." in name:
        return follow(name)[0]
    modules = [importlib.import_module(f"fanwise.{module}") for module in MODULES]
    return next((getattr(home, name) for home in (*modules, builtins) if hasattr(home, name)), None)


def follow(name: str) -> tuple[object, bool]:
    """Return the object of a dotted name, None if it is not known, and False if fanwise does not have it."""
    first, *rest = name.split(".")
    value: object = find(first) if CLASS.fullmatch(first) else None
    if first in ALIASES:
        value, rest = importlib.import_module("fanwise"), [*ALIASES[first].split(".")[1:], *rest]
    for part in rest:
        if hasattr(value, part):
            value = getattr(value, part)
        elif inspect.ismodule(value) and importlib.util.find_spec(f"{value.__name__}.{part}"):
            value = importlib.import_module(f"{value.__name__}.{part}")
        elif inspect.isclass(value) and re.search(rf"\bself\.{part}\b|^    {part}:", inspect.getsource(value), re.M):
            return None, True  # an attribute of instances
        else:
            return None, not (inspect.ismodule(value) or inspect.isclass(value))
    return value, True


def accepts(function: object, argument: str | None) -> bool:
    if argument is None or not callable(function):
        return True
    parameters = inspect.signature(function).parameters
    rest = [each.annotation for each in parameters.values() if each.kind is each.VAR_KEYWORD]
    return (
        argument in parameters
        or any("Unpack" not in str(annotation) for annotation in rest)
        or (bool(rest) and argument in unpacked(function))
    )


def unpacked(function: typing.Any) -> set[str]:
    return {name for hint in typing.get_type_hints(function).values() for name in getattr(hint, "__annotations__", ())}


def wrong_in_command(line: str) -> Iterator[str]:
    command: typing.Any = typer.main.get_command(app)
    options = {"--help", "-h"}
    words = shlex.split(re.split(r"[|>;]", line)[0], comments=True)[1:]
    while True:
        options |= {option for each in command.params for option in each.opts}
        if not words or words[0].startswith("-") or not hasattr(command, "commands"):
            break
        if words[0] not in command.commands:
            yield f"fanwise {words[0]}"
            return
        command = command.commands[words.pop(0)]
    yield from (f"{word} of {line}" for word in words if re.match("--?[a-z]", word) and word not in options)
    if command.name == "explain" and words and words[0].islower() and words[0] not in topics():
        yield f"fanwise explain {words[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_exists(page: Path, library: dict[str, str]) -> None:
    assert sorted(set(wrong_names(page.read_text(), "\n".join(library.values())))) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`fw.train(f)`, `fw.run(f)`", ["fw.train"]),
        ("`fanwise.tune.simulate`, `fanwise.tune.simulator`", ["fanwise.tune.simulator"]),
        ("`Tuner(..., retries=2)`, `Tuner(..., tries=2)`, `Tuner(speed=)`", ["speed= of Tuner", "tries= of Tuner"]),
        ("`GaussSearcher()`, `TPESearcher(num_init=3)`", ["GaussSearcher"]),
        ("`experiment.best.config`, `experiment.winner`", ["experiment.winner"]),
        ("`run.device`, `run.devices`", ["run.devices"]),
        ("`Tuner.resume(name)`, `Tuner.restore(name)`", ["Tuner.restore"]),
        ("`n_workers=3`, `n_slaves=3`", ["n_slaves=3"]),
        ("| in X | here |\n|---|---|\n| `Foo` | `PBTScheduler`, `PBT` |\n", ["PBTScheduler"]),
        ("`fanwise tune ls --json`, `fanwise tune list`, `fanwise tune ls --yaml`", ["--yaml of", "fanwise list"]),
        ("`fanwise explain lease`, `fanwise explain leases`", ["fanwise explain leases"]),
        ("```sh\nfanwise tune show NAME --trail 3\n```\n", ["--trail of"]),
        ("`make docs`, `make coffee`", ["make coffee"]),
        ("`examples/asha.py`, `examples/none.py`", ["examples/none.py"]),
    ],
)
def test_an_invented_name_is_seen(text: str, wrong: list[str], library: dict[str, str]) -> None:
    found = sorted(wrong_names(text, "\n".join(library.values())))
    assert len(found) == len(wrong) and all(map(str.startswith, found, wrong)), found
