"""Makes the examples of docstrings, which doctest runs, examples of the reference: a fence around every run of `>>>`.

An extension of griffe, which reads the sources for mkdocstrings. Without it Markdown takes `>>>` for a quotation.
"""

from typing import Any

import griffe


def fenced(text: str) -> str:
    """A docstring with a fence around each of its examples."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if not inside and line.lstrip().startswith(">>> "):
            inside, indent = True, line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        elif inside and not line.strip():
            inside = False
            lines.append(f"{indent}```")
        lines.append(line)
    return "\n".join([*lines, f"{indent}```"] if inside else lines)


class FencedExamples(griffe.Extension):  # type: ignore[misc]  # not looked into: see pyproject.toml
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
