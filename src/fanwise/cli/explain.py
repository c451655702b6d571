"""The command `fanwise explain`, which shows sections of errors.md and the guides, without a network.

A topic is the anchor of a section of `errors.md`, as named in error messages, or the name of a page. If both exist,
both are shown. The pages are in `docs/` of the repository and in `fanwise/docs` of a wheel.
"""

import re
import sys
import textwrap
from pathlib import Path

from ..base.nearest import nearest
from .console import UsageError, table_lines

_PACKAGE = Path(__file__).resolve().parents[1]
_DOCS_FOLDERS = (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs")  # of a wheel, of a checkout
_PAGES = ("quickstart.md", "recipes.md", "guides/*.md")

_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)\s]+\)")
_LINK_BETWEEN_PAGES = re.compile(r"\[((?:`[^`\n]*`|[^\]`])*)\]\((?!\w+:)[^)\s]+\)")


def topics() -> dict[str, str]:
    """Return {topic: Markdown}, the errors first."""
    folder = next((folder for folder in _DOCS_FOLDERS if (folder / "errors.md").is_file()), None)
    if folder is None:
        raise FileNotFoundError(f"the pages are missing in {', '.join(map(str, _DOCS_FOLDERS))}. Reinstall fanwise")
    _, *sections = re.split(r"^## ", (folder / "errors.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = {section.partition("\n")[0].strip().lower().replace(" ", "-"): f"## {section}" for section in sections}
    for path in (path for pattern in _PAGES for path in sorted(folder.glob(pattern))):
        pages[path.stem] = "\n".join([*([pages[path.stem]] if path.stem in pages else []), path.read_text("utf-8")])
    return pages


def topic_lines() -> list[str]:
    """Return lines with all topics and their summaries."""
    pages = topics()
    max_chars = 100 - max(map(len, pages))
    rows = [(name, textwrap.shorten(_summary(text), max_chars, placeholder=" ...")) for name, text in pages.items()]
    return ["fanwise explain TOPIC, where TOPIC is one of:", "", *table_lines(rows)]


def explained(topic: str) -> str:
    """Return the Markdown of a topic, or of the name of an error class. Raises UsageError if there is no such topic."""
    pages = topics()
    wanted = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", topic.strip().removesuffix("Error")).lower()
    if wanted not in pages:
        near = nearest(wanted, pages)
        hint = f"; did you mean {near!r}?" if near else "."
        raise UsageError(f"no topic {topic!r}{hint}\n`fanwise explain` lists all topics.")
    return _without_links(pages[wanted])


def show(markdown: str) -> None:
    """Print Markdown, formatted if standard output is a terminal."""
    if not sys.stdout.isatty():
        print(markdown)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(markdown))


def _without_links(markdown: str) -> str:
    """Remove pictures and links to other pages, except in code."""
    parts = _CODE.split(markdown.strip())
    return "".join(
        part if part.startswith("```") else _LINK_BETWEEN_PAGES.sub(r"\1", _PICTURE.sub(r"(picture: \1)", part))
        for part in parts
    )


def _summary(markdown: str) -> str:
    """Return the first sentence of a section about an error, or the title of a guide."""
    title, _, text = markdown.partition("\n\n")
    if title.startswith("## "):
        return " ".join(text.partition("\n\n")[0].partition(". ")[0].split()).replace("`", "")
    return title.lstrip("# ")
