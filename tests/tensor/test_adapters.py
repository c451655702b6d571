"""Engines that a program registers."""

from typing import Any

import numpy as np
import pytest

import fanwise.tensor as ft
from fanwise.tensor import adapters, engines
from fanwise.tensor.engines import ENGINES


def test_a_call_names_the_part_that_a_registered_engine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cells(np.ndarray[Any, Any]):
        pass

    tables: list[tuple[Any, Any]] = [
        (ENGINES, "cells"),
        (adapters.exchanges, "cells"),
        (engines._BASE_CLASSES, (__name__, "Cells")),
        (engines._engine_by_type, Cells),
    ]
    monkeypatch.setattr(engines, "_LIBRARIES", set(engines._LIBRARIES))
    for table, key in tables:
        monkeypatch.setitem(table, key, None)  # removed again when the test ends
    ft.register_engine(engines.Engine("cells"), Cells, exchange=adapters.exchanges["numpy"])
    x = np.ones(2).view(Cells)
    assert ft.convert(x, "torch").tolist() == [1.0, 1.0]
    for call, part in ((ft.exp, "namespace"), (lambda x: ft.at(x)[0].set(1.0), "writing")):
        with pytest.raises(TypeError, match=rf"cells was registered without the part '{part}'.*{part}=\.\.\."):
            call(x)  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match="cells has no gradients; torch, jax, tensorflow have"):
        ft.grad(lambda x: x)(x)
