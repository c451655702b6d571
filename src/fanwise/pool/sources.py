"""The user's source files that this process has imported, and whether they were edited since.

A process that runs jobs with what it imported earlier must not do so with old code. Only modules that are new since
the last look are looked at: with torch there are thousands.
"""

import sys
from pathlib import Path

from .preload import Snapshot, changed, sources_of


class Sources:
    """See the module. A forked process has a copy of its parent's."""

    def __init__(self) -> None:
        self._files: Snapshot = {}
        self._modules: set[str] = set()

    def remember(self) -> bool:
        """Note the files of what was imported since the last time, as they are now. False when nothing was."""
        new = sys.modules.keys() - self._modules
        if new:
            self._modules |= new
            self._files.update({path: stamp for path, stamp in sources_of(new).items() if path not in self._files})
        return bool(new)

    def edited(self) -> list[Path]:
        """The files that are not any more what they were when they were noted."""
        return changed(self._files)
