"""Writes the pages that Zensical builds the site from: `python docs/site/pages.py FOLDER`, which `make docs` calls.

    README.md, CHANGELOG.md, SECURITY.md, docs/**.md  --links rewritten-->  FOLDER
    examples/*.py, and every file that a page links   --as a page each-->   FOLDER/code/
    tests/arch/surface.txt                            --a page a layer-->   FOLDER/reference/

In the repository a link leads to a file, or to a line of it. On the site the same link leads to the page of that file.
The reference has the public names, which tests/arch/surface.txt lists. mkdocstrings reads their docstrings from the
sources, without importing them.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOT_PAGES = DOCS / "site"  # the programs and assets of the site

# {page in the root of the repository: its name on the site}
AT_ROOT = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "SECURITY.md": "SECURITY.md"}
AT_ROOT["CONTRIBUTING.md"] = "CONTRIBUTING.md"

LAYERS = {
    "fanwise": "The names of `import fanwise`.",
    "fanwise.tune": "Searches.",
    "fanwise.parallel": "Training on several devices.",
    "fanwise.rpc": "Remote calls, references, distributed autograd.",
    "fanwise.tensor": "Arrays of any engine.",
    "fanwise.pool": "Warm workers.",
    "fanwise.plot": "Figures.",
    "fanwise.zoo": "Data sets and models of the examples.",
    "fanwise.testing": "Tools for tests of your own searchers and schedulers.",
}

FENCED = re.compile(r"^([ ]*)```.*?^\1```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml"}


def documents() -> Iterator[Path]:
    yield from (ROOT / name for name in AT_ROOT)
    yield from (path for path in sorted(DOCS.rglob("*.md")) if NOT_PAGES not in path.parents)


def place_of(file: Path) -> Path:
    """Return the path of a file of the repository on the site."""
    if file.parent == ROOT and file.name in AT_ROOT:
        return Path(AT_ROOT[file.name])
    if DOCS in file.parents:
        return file.relative_to(DOCS)
    return Path("code") / f"{file.relative_to(ROOT)}.md"


def rewritten(text: str, page: Path) -> tuple[str, set[Path]]:
    """The page with links as the site needs them, and the files outside of docs/ that they lead to."""
    linked: set[Path] = set()

    def target(match: re.Match[str]) -> str:
        path, _, anchor = match[1].partition("#")
        if re.match(r"\w+:", match[1]) or not path:
            return match[1]
        file = (page.parent / path).resolve()
        if not file.is_relative_to(ROOT) or not file.is_file():
            raise SystemExit(f"{page.relative_to(ROOT)}: {match[1]} leads to no file")
        place = place_of(file)
        if place.parts[0] == "code":
            linked.add(file)
            anchor = re.sub(r"^L(\d+)$", r"__codelineno-0-\1", anchor)
        link = os.path.relpath(place, place_of(page).parent)
        return f"{link}#{anchor}" if anchor else link

    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [LINK.sub(target, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(target, text[end:])]), linked


def code_page(file: Path) -> str:
    """A file of the repository as a page whose lines have addresses."""
    text, name = file.read_text(), file.relative_to(ROOT)
    fence = "`" * (3 + max((len(run) for run in re.findall(r"`{3,}", text)), default=0))
    return f'# {name}\n\n{fence}{LANGUAGES.get(file.suffix, "text")} linenums="1"\n{text}{fence}\n'


def public_names() -> dict[str, list[str]]:
    """The names of each layer that users import, as the snapshot has them."""
    names: dict[str, list[str]] = {layer: [] for layer in LAYERS}
    for line in (ROOT / "tests" / "arch" / "surface.txt").read_text().splitlines():
        entry = re.match(r"(fanwise(?:\.[a-z]+)?)\.(\w+)(?:\(|: (?!module)| =)", line)
        if entry and entry[1] in names and not entry[2].startswith("__"):
            names[entry[1]].append(entry[2])
    return names


def reference_page(layer: str, names: list[str]) -> str:
    lines = [f"# {layer}", "", LAYERS[layer], ""]
    if layer == "fanwise.tensor":
        lines += ["Besides these there are all functions, constants and dtypes of the array API standard 2025.12, with"]
        lines += ["`linalg` and `fft`; see [the guide](../guides/tensor.md).", ""]
    return "\n".join([*lines, *(f"::: {layer}.{name}\n" for name in sorted(names, key=str.lower))])


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=lambda at, names: {"site"} if Path(at) == DOCS else set())
    shutil.copytree(NOT_PAGES / "assets", folder / "assets")
    files = set((ROOT / "examples").glob("*.py"))
    for page in documents():
        text, linked = rewritten(page.read_text(), page)
        files |= linked
        (folder / place_of(page)).write_text(text)
    for file in files:
        place = folder / place_of(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(code_page(file))
    (folder / "reference").mkdir()
    for layer, names in public_names().items():
        (folder / "reference" / f"{layer}.md").write_text(reference_page(layer, names))
    errors = "# fanwise.errors\n\nWhat to do about each of them: [Errors](../errors.md).\n\n::: fanwise.errors\n"
    errors += "    options:\n      show_root_heading: false\n"
    (folder / "reference" / "fanwise.errors.md").write_text(errors)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
