"""Where a search is."""

import enum


class Stage(enum.Enum):
    """OPEN: trials start. DRAINING: what runs may end. STOPPING: what runs was told to stop. FINISHED: nothing runs."""

    OPEN = "open"
    DRAINING = "draining"
    STOPPING = "stopping"
    FINISHED = "finished"
