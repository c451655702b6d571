"""Doing something around the import of a library by whoever imports it first.

    call_on_import({"torch": limit})     limit(torch) right after the import of torch
    around_imports(context)              every library that is imported meanwhile is executed in `with context():`

Settings of a library that a job needs, and the warm process did not load, must wait for the job's own import: its
random seed, its share of a GPU. A watcher is an entry in `sys.meta_path` that is gone when nothing is left to wait for.
Other import hooks are asked as before, in their order, also another watcher that waits for the same library.
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
    return _begun(ImportWatcher({name: _after(call) for name, call in calls.items() if name not in sys.modules}))


def around_imports(context: Callable[[], AbstractContextManager[object]]) -> "ImportWatcher":
    """Execute every library that is imported from now on in `with context():`, what it imports itself included."""
    return _begun(ImportWatcher({}, every=lambda module: context()))


def _after(call: Call) -> Around:
    @contextmanager
    def around(module: types.ModuleType) -> Iterator[None]:
        yield
        call(module)

    return around


def _begun(watcher: "ImportWatcher") -> "ImportWatcher":
    if watcher.is_waiting:
        sys.meta_path.insert(0, watcher)
    return watcher


class ImportWatcher(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the other finders find, and executes the found module in a context.

    Args:
        waiting: contexts by the name of the module, each for once. every: of all libraries that have none.
    """

    def __init__(self, waiting: dict[str, Around], every: Around | None = None) -> None:
        self._waiting = waiting
        self._every = every
        self._asked: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether there is a module left to wait for."""
        return bool(self._waiting) or self._every is not None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # One that is asked for already comes from another watcher, which asks all but itself.
        if fullname in self._asked or self._around(fullname) is None:
            return None
        self._asked.add(fullname)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asked.discard(fullname)
        loader = None if spec is None else spec.loader
        # A loader that is a class serves other modules too, and cannot be changed for this one alone.
        if loader is not None and hasattr(loader, "exec_module") and not isinstance(loader, type):
            self._execute_within(loader, fullname)
        return spec

    def _around(self, fullname: str) -> Around | None:
        return self._waiting.get(fullname) or (None if "." in fullname else self._every)

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None and (spec := find(fullname, path, target)) is not None:
                return spec  # type: ignore[no-any-return]  # that is what finders return
        return None

    def _execute_within(self, loader: importlib.abc.Loader, fullname: str) -> None:
        """Replace `exec_module` on this one loader, which stays what it is for everything else (source, resources)."""
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            around = self._around(fullname)
            if around is None:  # it watches no more
                execute(module)
            else:
                with around(module):
                    execute(module)
            self._waiting.pop(fullname, None)
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            if not self.is_waiting:
                self.leave()

        loader.exec_module = exec_module  # type: ignore[method-assign]  # for this loader only, until it ran

    def leave(self) -> None:
        """Watch no more; what was found and not executed yet is not called for."""
        self._waiting.clear()
        self._every = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
