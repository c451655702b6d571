"""Shows a search in a notebook, in a display below the running cell that is updated in place."""

from typing import Any, final

from IPython import display

from .table import TakeSnapshot, html_of, search_view, text_of


@final
class NotebookOutput:
    """Shows the table as HTML, or as text in front ends without HTML."""

    pause_s = 0.5

    def __init__(self) -> None:
        # The display stays below the running cell, even if the search continues in the background.
        self._handle: Any = display.display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, news: list[str], take_snapshot: TakeSnapshot) -> None:
        snapshot = take_snapshot()
        view = search_view(snapshot, title=snapshot.name)
        self._handle.update({"text/html": html_of(view), "text/plain": text_of(view)}, raw=True)

    end = show
