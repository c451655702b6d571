"""The pages of the site: links lead where they lead in the repository, and every public name is in the reference.

`make docs` checks the links of all pages when it builds the site.
"""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

SITE = Path(__file__).resolve().parents[2] / "docs" / "site"
ROOT = SITE.parents[1]


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return loaded("pages")


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        ("README.md", "docs/quickstart.md", "quickstart.md"),
        ("README.md", "docs/img/workers-compared.png", "img/workers-compared.png"),
        ("docs/errors.md", "#lease", "#lease"),
        ("docs/errors.md", "../README.md#more", "index.md#more"),
        ("docs/guides/rpc.md", "../../SECURITY.md", "../SECURITY.md"),
        ("docs/book/13.5.md", "../../examples/data_parallel.py", "../code/examples/data_parallel.py.md"),
        ("docs/book/13.5.md", "../../examples/asha.py#L7", "../code/examples/asha.py.md#__codelineno-0-7"),
        ("docs/book/13.5.md", "https://d2l.ai/x.html#L7", "https://d2l.ai/x.html#L7"),
    ],
)
def test_a_link_leads_to_the_page_of_its_file(pages: ModuleType, page: str, link: str, on_the_site: str) -> None:
    text, _ = pages.rewritten(f"see [this]({link})\n```text\n[that]({link})\n```\n", ROOT / page)
    assert text == f"see [this]({on_the_site})\n```text\n[that]({link})\n```\n"


def test_a_link_to_no_file_ends_the_build(pages: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"docs/errors\.md: none\.py leads to no file"):
        pages.rewritten("[this](none.py)", ROOT / "docs" / "errors.md")


def test_everything_that_is_made_is_there(pages: ModuleType, tmp_path: Path) -> None:
    pages.main(tmp_path)
    assert (tmp_path / "index.md").read_text().startswith("# fanwise\n")
    assert not list(tmp_path.rglob("pages.py"))
    for example in (ROOT / "examples").glob("*.py"):
        assert example.read_text() in (tmp_path / "code" / "examples" / f"{example.name}.md").read_text()
    listed = re.findall(r"^::: (\S+)$", (tmp_path / "reference" / "fanwise.tune.md").read_text(), re.MULTILINE)
    assert {"fanwise.tune.Tuner", "fanwise.tune.report", "fanwise.tune.loguniform"} <= set(listed)
    assert not [name for name in listed if name.count(".") != 2]


def test_every_page_is_in_the_navigation(pages: ModuleType) -> None:
    nav = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2], re.MULTILINE)
    assert len(nav) == len(set(nav))
    wanted = {str(pages.place_of(page)) for page in pages.documents()}
    assert wanted - set(nav) == set()


def test_examples_of_docstrings_are_fenced() -> None:
    pytest.importorskip("griffe", reason="needs the extra docs")
    fenced = loaded("docstrings").fenced
    assert (
        fenced("Two.\n\n    >>> 1 + 1\n    2\n\nMore.")
        == "Two.\n\n    ```pycon\n    >>> 1 + 1\n    2\n    ```\n\nMore."
    )
    assert fenced(">>> x = [\n... ]") == "```pycon\n>>> x = [\n... ]\n```"
    assert fenced("No `>>>` here.\n\nNor here.") == "No `>>>` here.\n\nNor here."
