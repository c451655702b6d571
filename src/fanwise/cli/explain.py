"""`fanwise explain TOPIC`: what a message meant, and the guides, without a network or a checkout.

The pages are those of the repository's `docs/`: a wheel holds a copy below `fanwise/docs`. A topic is a section of
`errors.md`, by the anchor that the messages name, or a page, by its name. Where both have one name, both are shown.
"""

import re
import sys
import textwrap
from pathlib import Path

from ..base.nearest import did_you_mean
from .usage import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs")  # of a wheel, of a checkout
_PAGES = ("quickstart.md", "recipes.md", "guides/*.md")

_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)\s]+\)")
_LINK_BETWEEN_PAGES = re.compile(r"\[((?:`[^`\n]*`|[^\]`])*)\]\((?!\w+:)[^)\s]+\)")


def topics() -> dict[str, str]:
    """What there is to explain: Markdown by topic, the errors first."""
    folder = next((place for place in _PLACES if (place / "errors.md").is_file()), None)
    if folder is None:
        raise FileNotFoundError(f"the pages are in none of {', '.join(map(str, _PLACES))}. Install fanwise again")
    _, *sections = re.split(r"^## ", (folder / "errors.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {section.partition("\n")[0].strip().lower().replace(" ", "-"): f"## {section}" for section in sections}
    for path in (path for pattern in _PAGES for path in sorted(folder.glob(pattern))):
        found[path.stem] = "\n".join([*([found[path.stem]] if path.stem in found else []), path.read_text("utf-8")])
    return found


def topic_lines() -> list[str]:
    """The topics, one a line, each with what it is about."""
    found = topics()
    width = max(map(len, found))
    about = {name: textwrap.shorten(_about(text), 100 - width, placeholder=" ...") for name, text in found.items()}
    return ["fanwise explain TOPIC, of:", "", *(f"{name:{width}}  {line}" for name, line in about.items())]


def explained(topic: str) -> str:
    """The Markdown of a topic, also by the name of a class as `WorkerLostError`. Raises UsageError: there is none."""
    found = topics()
    wanted = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", topic.strip().removesuffix("Error")).lower()
    if wanted not in found:
        raise UsageError(f"no topic {topic!r}{did_you_mean(wanted, found)}\n`fanwise explain` lists them all.")
    return _alone(found[wanted])


def show(markdown: str) -> None:
    """In the colours and the width of the terminal; as it is where a program reads it."""
    if not sys.stdout.isatty():
        print(markdown)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(markdown))


def _alone(markdown: str) -> str:
    """The same, without pictures and without links to other files, which are not here; code stays as it is."""
    parts = _CODE.split(markdown.strip())
    return "".join(
        part if part.startswith("```") else _LINK_BETWEEN_PAGES.sub(r"\1", _PICTURE.sub(r"(picture: \1)", part))
        for part in parts
    )


def _about(markdown: str) -> str:
    """The first sentence of an error's section, the title of a guide."""
    title, _, text = markdown.partition("\n\n")
    if title.startswith("## "):
        return " ".join(text.partition("\n\n")[0].partition(". ")[0].split()).replace("`", "")
    return title.lstrip("# ")
