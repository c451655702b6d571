"""Where a search is: a word, for looking a member up in an enum's class costs as much as a call (Python 3.11)."""

from typing import Literal, TypeAlias

# open: trials start. draining: what began may come to its end. stopping: what runs was told to stop. finished: nothing
# runs.
Stage: TypeAlias = Literal["open", "draining", "stopping", "finished"]
