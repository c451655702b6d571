"""Advice for a name that an allow-list refused: add it, unless it would give callers control of the process. Pure.

A message that advises listing `pickle.loads` or `os.system` would open the worker to all its callers. Only the most
common dangerous names are known here; others are not necessarily harmless.
"""

_LAMBDA = frozenset(("_pickle.loads", "pickle.loads", "pickle._loads"))
# By module, with those below it, or by full name: what a caller does with it.
_GIVES_AWAY = {
    **dict.fromkeys(
        ("os", "posix", "nt", "subprocess", "_posixsubprocess", "pty", "shutil"), "runs programs, or changes files"
    ),
    **dict.fromkeys(
        ("pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"), "runs what its bytes name"
    ),
    **dict.fromkeys(("torch.load", "torch.serialization", "torch.hub", "torch.package"), "runs what its file names"),
    **dict.fromkeys(("numpy.load", "numpy.lib.npyio"), "runs what its file names"),
    **dict.fromkeys(("builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__"), "runs any code"),
    **dict.fromkeys(("importlib", "runpy", "code", "codeop", "timeit", "pdb", "bdb"), "runs any code"),
    **dict.fromkeys(
        ("builtins.open", "io", "_io", "pathlib", "tempfile", "socket"), "reads and writes any file or socket"
    ),
    **dict.fromkeys(("builtins.getattr", "builtins.setattr", "builtins.delattr"), "reaches into any object"),
    **dict.fromkeys(
        ("builtins.vars", "builtins.globals", "operator.attrgetter", "operator.methodcaller"), "reaches into any object"
    ),
    **dict.fromkeys(
        ("functools.partial", "functools.reduce", "types", "builtins.type"), "makes functions and classes of any kind"
    ),
    **dict.fromkeys(("ctypes", "_ctypes", "gc", "sys", "signal", "multiprocessing"), "changes the process itself"),
}


def what_to_do(name: str) -> str:
    """For the message that refuses `name`, "module.name"."""
    if name in _LAMBDA:
        return (
            "A lambda, or a function that is defined inside another, travels so, with its code: define it at the top "
            "of a module that both workers import, and list that function. This name belongs on no allow-list: it runs "
            "what its bytes name"
        )
    given = _gives_away(name)
    if given is not None:
        return given
    return f"If callers may use it, add {name!r} to allow= of TensorPipeRpcBackendOptions"


def what_to_do_for_method(kind: str) -> str:
    """The same for a method of a class, "module.Class"."""
    given = _gives_away(kind)
    if given is not None:
        return given
    return (
        f"If callers may use the methods of a {kind.rpartition('.')[2]}, add {kind!r} to allow= of "
        f"TensorPipeRpcBackendOptions; those with a leading underscore are listed one by one"
    )


def _gives_away(name: str) -> str | None:
    parts = name.split(".")
    for head in (".".join(parts[:size]) for size in range(1, len(parts) + 1)):
        if head in _GIVES_AWAY:
            return (
                f"With {head} a caller {_GIVES_AWAY[head]}, and so has the whole worker: it belongs on no allow-list. "
                f"Write a function that does the one thing that callers need, and list that"
            )
    return None
