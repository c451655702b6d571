"""Doing something right after a library is imported by whoever imports it first.

Settings of a library that a job needs, and the warm process did not load, must wait for the job's own import: its
random seed, its share of a GPU. The watcher is an entry in `sys.meta_path` that is gone when nothing is left to wait
for. Other import hooks are asked as before, in their order.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping, Sequence

Call = Callable[[types.ModuleType], None]


def call_on_import(calls: Mapping[str, Call]) -> "ImportWatcher":
    """Call `calls[name](module)` right after the import of each named module that is not loaded yet."""
    watcher = ImportWatcher({name: call for name, call in calls.items() if name not in sys.modules})
    if watcher.is_waiting:
        sys.meta_path.insert(0, watcher)
    return watcher


class ImportWatcher(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the other finders find, and calls after the found module was executed."""

    def __init__(self, waiting: dict[str, Call]) -> None:
        self._waiting = waiting

    @property
    def is_waiting(self) -> bool:
        """Whether there is a module left to wait for."""
        return bool(self._waiting)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        spec = self._ask_others(fullname, path, target)
        loader = None if spec is None else spec.loader
        # A loader that is a class serves other modules too, and cannot be changed for this one alone.
        if loader is not None and hasattr(loader, "exec_module") and not isinstance(loader, type):
            self._call_after(loader, fullname)
        return spec

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None and (spec := find(fullname, path, target)) is not None:
                return spec  # type: ignore[no-any-return]  # that is what finders return
        return None

    def _call_after(self, loader: importlib.abc.Loader, fullname: str) -> None:
        """Replace `exec_module` on this one loader, which stays what it is for everything else (source, resources)."""
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            call = self._waiting.pop(fullname, None)
            if call is not None:
                call(module)
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            if not self._waiting:
                self.leave()

        loader.exec_module = exec_module  # type: ignore[method-assign]  # for this loader only, until it ran

    def leave(self) -> None:
        """Watch no more; what was found and not executed yet is not called for."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)
