"""The screen of a notebook: one display below the cell, which is updated in place."""

from collections.abc import Iterable
from typing import Any

from IPython import display

from ..record.snapshot import SearchSnapshot
from .notebook_page import search_page
from .table import final_block, status_block


class NotebookScreen:
    """A table that is replaced in place; the text of it is there too, for where no HTML is shown."""

    pause_s = 0.5
    is_blank = False

    def __init__(self) -> None:
        self._handle: Any = None  # Any: IPython's
        self._said: list[str] = []

    def begin(self, lines: Iterable[str]) -> None:
        print("\n".join(lines), flush=True)
        self._handle = display.display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        self._update(search_page(snapshot, " ".join(self._said)), status_block(snapshot))

    def say(self, line: str) -> None:
        self._said.append(line)
        print(line, flush=True)

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        last = "; ".join(lines)
        self._update(search_page(snapshot, last), f"{final_block(snapshot)}\n{last}")

    def _update(self, html: str, text: str) -> None:
        if self._handle is not None:
            self._handle.update({"text/html": html, "text/plain": text}, raw=True)
