"""The stages of a search. They are strings, because accessing an enum member is as slow as a call (Python 3.11)."""

from typing import Literal, TypeAlias

# open: trials start. draining: started trials may finish. stopping: running trials were asked to stop. finished: no
# trial is running.
Stage: TypeAlias = Literal["open", "draining", "stopping", "finished"]
