"""Without ConfigSpace and Optuna the library works; what needs them names the extra."""

import importlib
import sys

import pytest

from fanwise.base.errors import NotInstalled


@pytest.mark.parametrize(("library", "extra"), [("ConfigSpace", "configspace"), ("optuna", "optuna")])
def test_a_library_that_is_not_there_is_named_with_its_extra(
    library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"fanwise.tune.spaces.with_{extra}", raising=False)
    with pytest.raises(NotInstalled, match=rf"pip install 'fanwise\[{extra}\]'"):
        importlib.import_module(f"fanwise.tune.spaces.with_{extra}")
