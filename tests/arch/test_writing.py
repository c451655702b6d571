"""How the files are written: the rules of CONTRIBUTING.md that can be counted.

Like in test_imports, each rule is a function that must also refuse wrong examples.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from random_trees import dotted, nodes_of

from fanwise.base import errors

WRITTEN_BY_HAND = (".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cfg", "Makefile", "run")
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs", ".ci")
# The terminal belongs to the command line and to the tuner's live table; everything else returns or logs.
MAY_PRINT = ("cli/", "tune/display/screen.py", "tune/display/with_ipython.py")
# In pieces, so that this file does not break its own rule.
LATER = "TO" + "DO"
OPEN_WORK = re.compile(rf"\b(?:{LATER}(?!\(#\d+\))|{'FIX' + 'ME'}|{'XX' + 'X'})\b")

Rule = Callable[[str], Iterator[str]]


def nodes_if(words: str, text: str) -> list[ast.AST]:
    """The nodes of a file in which one of the words stands, none of the others: parsing all takes seconds."""
    return nodes_of(text) if re.search(words, text) else []


def naps(text: str) -> Iterator[str]:
    for call in nodes_if("sleep", text):
        if isinstance(call, ast.Call) and dotted(call.func).split(".")[-1] in ("sleep", "usleep", "nanosleep"):
            if [ast.unparse(argument) for argument in call.args] != ["0"]:  # asyncio's way to let others run
                yield f"line {call.lineno}: {ast.unparse(call)}: wait for a fact with within(seconds, fact, what)"


def second_chances(text: str) -> Iterator[str]:
    """Marks that run a test again, or leave it out without saying why."""
    nodes = nodes_if("flaky|rerun|skip|xfail", text)
    with_reason = {id(node.func) for node in nodes if isinstance(node, ast.Call) and has_reason(node)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name in ("pytest.mark.flaky", "pytest.mark.rerun"):
                yield f"line {node.lineno}: {name}: repair the test or remove it"
            skips = name in ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail", "pytest.skip")
            if skips and id(node) not in with_reason:
                yield f"line {node.lineno}: {name} gives no reason"


def has_reason(call: ast.Call) -> bool:
    in_words = call.args[:1] if dotted(call.func) in ("pytest.skip", "pytest.mark.skip") else []
    return bool(in_words) or any(keyword.arg == "reason" for keyword in call.keywords)


def prints(text: str) -> Iterator[str]:
    for node in nodes_of(text):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"line {node.lineno}: print"


def open_work(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if OPEN_WORK.search(line):
            yield f"line {number}: open work without its issue, as in {LATER}(#12)"


def beyond_ascii(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.isascii():
            yield f"line {number}: {line!a}"


def complaints(rule: Rule, files: dict[str, str]) -> str:
    return "\n".join(f"{path}: {complaint}" for path, text in files.items() for complaint in rule(text))


@pytest.fixture(scope="module")
def written(repository: Path) -> dict[str, str]:
    """Text by path from the root, of all files people write."""
    paths = [path for folder in FOLDERS for path in (repository / folder).rglob("*")]
    paths += [path for path in repository.iterdir() if path.name != "LICENSE"]
    return {
        path.relative_to(repository).as_posix(): path.read_text()
        for path in sorted(paths)
        if path.is_file() and path.name.endswith(WRITTEN_BY_HAND)
    }


@pytest.fixture(scope="module")
def python_files(written: dict[str, str]) -> dict[str, str]:
    return {path: text for path, text in written.items() if path.endswith(".py")}


@pytest.fixture(scope="module")
def test_files(python_files: dict[str, str]) -> dict[str, str]:
    return {path: text for path, text in python_files.items() if path.startswith("tests/")}


def test_no_test_sleeps(test_files: dict[str, str]) -> None:
    assert complaints(naps, test_files) == ""


def test_no_test_gets_a_second_chance_or_is_skipped_in_silence(test_files: dict[str, str]) -> None:
    assert complaints(second_chances, test_files) == ""


def test_only_the_command_line_and_the_terminal_print(library: dict[str, str]) -> None:
    assert complaints(prints, {p: text for p, text in library.items() if not p.startswith(MAY_PRINT)}) == ""


def test_open_work_names_its_issue(written: dict[str, str]) -> None:
    assert complaints(open_work, written) == ""


def test_sources_are_ascii(written: dict[str, str]) -> None:
    assert complaints(beyond_ascii, written) == ""


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        (naps, "import time\ntime.sleep(0.1)"),
        (naps, "from time import sleep\ndef f():\n    sleep(1)"),
        (second_chances, "@pytest.mark.flaky(reruns=3)\ndef test_a(): ..."),
        (second_chances, "@pytest.mark.skip\ndef test_a(): ..."),
        (second_chances, "@pytest.mark.skip()\ndef test_a(): ..."),
        (second_chances, "@pytest.mark.skipif(sys.platform == 'win32')\ndef test_a(): ..."),
        (second_chances, "def test_a():\n    pytest.skip()"),
        (prints, "def f():\n    print('hello')"),
        (open_work, f"# {LATER}: later"),
        (open_work, "# FIX" + "ME(#12) is not the form"),
        (beyond_ascii, "x = '\N{LATIN SMALL LETTER E WITH ACUTE}'"),
    ],
)
def test_a_broken_rule_is_seen(rule: Rule, wrong: str) -> None:
    assert len(list(rule(wrong))) == 1


@pytest.mark.parametrize(
    ("rule", "right"),
    [
        (naps, "done.wait(1.0)\ntext = 'time.sleep(1)'\nasyncio.sleep(0)"),
        (
            second_chances,
            "@pytest.mark.skipif(no_gpu, reason='needs a GPU')\ndef test_a():\n    pytest.skip('no fork')",
        ),
        (prints, "console.print('hello')"),
        (open_work, f"# {LATER}(#12): later"),
    ],
)
def test_what_the_rules_allow_passes(rule: Rule, right: str) -> None:
    assert list(rule(right)) == []


def error_anchors() -> dict[str, str]:
    """Return {error class: anchor}."""
    classes = vars(errors).values()
    return {
        error.__name__: error.anchor
        for error in classes
        if isinstance(error, type) and issubclass(error, errors.FanwiseError)
    }


def anchors_of(text: str) -> list[str]:
    """The anchors of the headings of the second level, as GitHub makes them of their words."""
    return [heading.strip().lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", text, re.MULTILINE)]


def test_every_error_has_its_section_and_every_section_its_error(written: dict[str, str]) -> None:
    assert sorted(anchors_of(written["docs/errors.md"])) == sorted(error_anchors().values())


def test_every_error_class_is_named_in_its_section(written: dict[str, str]) -> None:
    sections = written["docs/errors.md"].split("\n## ")[1:]
    by_anchor = {anchors_of(f"## {section}")[0]: section for section in sections}
    unnamed = [name for name, anchor in error_anchors().items() if f"`{name}`" not in by_anchor[anchor]]
    assert unnamed == []


def test_headings_become_anchors() -> None:
    assert anchors_of("# Errors\n## Worker lost\ntext\n## wire\n### Not this\n") == ["worker-lost", "wire"]


# A file as documents name it: `engines.py`, `base/errors.py`; not `with_<engine>.py`.
FILE_NAME = re.compile(r"(?<![\w/.<>*-])((?:[\w-]+/)*[\w-]+\.pyi?)\b(?!\.)")
OF_USERS = ("train.py",)  # programs that docstrings speak of
# Layers that a design note is about, where its name does not say so.
NOTES = {
    "rpc": ("rpc", "links"),
    "rpc-decisions": ("rpc", "links"),
    "cluster": ("pool/cluster",),
    "tune": ("tune",),
    "pool": ("pool",),
    "wire-format": ("tensor", "links"),
}


def names_of_no_file(text: str, homes: tuple[str, ...], paths: set[str]) -> list[str]:
    """Files that a text names and that are neither in one of these folders, nor beside one above it, nor a test.

    A name with a folder may be anywhere: it says where.
    """
    above = {parent.as_posix() for home in homes for parent in Path(home).parents}

    def exists(name: str) -> bool:
        if "/" in name or name.startswith("test_") or name == "conftest.py":
            return any(f"/{path}".endswith(f"/{name}") for path in paths)
        return any(
            path.startswith(tuple(f"{home}/" for home in homes)) or Path(path).parent.as_posix() in above
            for path in paths
            if Path(path).name == name
        )

    return [name for name in FILE_NAME.findall(text) if name not in OF_USERS and not exists(name)]


def test_files_that_design_notes_and_docstrings_of_modules_name_exist(
    written: dict[str, str], repository: Path
) -> None:
    paths = {*written, *(path.relative_to(repository).as_posix() for path in (repository / "src").rglob("*.pyi"))}
    missing = {}
    for path, text in written.items():
        if path.startswith("docs/design/"):
            layers = NOTES.get(Path(path).stem, (Path(path).stem,))
            homes = tuple(f"src/fanwise/{layer}" for layer in layers)
        elif path.startswith("src/") and path.endswith(".py"):
            text, homes = ast.get_docstring(ast.parse(text)) or "", (Path(path).parent.as_posix(),)
        else:
            continue
        if found := names_of_no_file(text, homes, paths):
            missing[path] = found
    assert missing == {}


def test_a_name_of_no_file_is_seen() -> None:
    paths = {"src/fanwise/a/here.py", "src/fanwise/top.py", "src/fanwise/b/there.py", "tests/b/test_it.py"}
    text = "`here.py`, top.py, b/there.py and test_it.py exist, with_<engine>.py may; there.py and a/gone.py do not."
    assert names_of_no_file(text, ("src/fanwise/a",), paths) == ["there.py", "a/gone.py"]
