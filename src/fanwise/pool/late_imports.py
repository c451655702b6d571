"""Calls around the import of a library, for settings that must wait until a job imports it.

Examples are the random seed and the share of a GPU. The watcher is an entry in `sys.meta_path`, which is removed when
it has nothing left to wait for. Other import hooks work as before, and several watchers may wait for one library.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

Call = Callable[[types.ModuleType], None]
Around = Callable[[types.ModuleType], AbstractContextManager[object]]


def call_on_import(calls: Mapping[str, Call]) -> "ImportWatcher":
    """Call `calls[name](module)` right after the import of each named module that is not loaded yet."""
    return ImportWatcher({name: _after(call) for name, call in calls.items() if name not in sys.modules})


def around_imports(context: Callable[[], AbstractContextManager[object]]) -> "ImportWatcher":
    """Execute every top-level module that is imported from now on in `with context():`, including its own imports."""
    return ImportWatcher({}, default=lambda module: context())


def _after(call: Call) -> Around:
    @contextmanager
    def around(module: types.ModuleType) -> Iterator[None]:
        yield
        call(module)

    return around


class ImportWatcher(importlib.abc.MetaPathFinder):
    """A finder that lets the other finders find modules, and executes them in a context, until it `leave`s.

    Args:
        waiting: contexts by module name. Each is used once.
        default: context of all other top-level modules.
    """

    def __init__(self, waiting: dict[str, Around], default: Around | None = None) -> None:
        self._waiting = waiting
        self._default = default
        if self.is_waiting:
            sys.meta_path.insert(0, self)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting) or self._default is not None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self._around(fullname) is None:
            return None
        spec = self._find_with_later_finders(fullname, path, target)
        loader = None if spec is None else spec.loader
        # A loader that is a class is shared with other modules and cannot be changed.
        if loader is not None and hasattr(loader, "exec_module") and not isinstance(loader, type):
            self._execute_within(loader, fullname)
        return spec

    def _around(self, fullname: str) -> Around | None:
        return self._waiting.get(fullname) or (None if "." in fullname else self._default)

    def _find_with_later_finders(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if hasattr(finder, "find_spec") and (spec := finder.find_spec(fullname, path, target)) is not None:
                return spec
        return None

    def _execute_within(self, loader: importlib.abc.Loader, fullname: str) -> None:
        """Replace `exec_module` of this loader once. Its other methods (source, resources) stay as they are."""
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            around = self._around(fullname)
            if around is None:  # the watcher was removed
                execute(module)
            else:
                with around(module):
                    execute(module)
            self._waiting.pop(fullname, None)
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            if not self.is_waiting:
                self.leave()

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def leave(self) -> None:
        """Stop watching, also for modules that were found and not executed yet."""
        self._waiting.clear()
        self._default = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
