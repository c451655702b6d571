from pathlib import Path

from fanwise.base.lazy_names import lazy_modules


def test_lazy_names_are_those_that_a_file_imports_for_type_checkers(tmp_path: Path) -> None:
    file = tmp_path / "__init__.py"
    file.write_text(
        "from .now import Early as Early\n"
        "if TYPE_CHECKING:\n"
        "    from . import submodule as submodule\n"
        "    from .deep.module import Late as Late\n"
        "    from ..base import other as other\n"
    )
    assert lazy_modules(str(file)) == {"Late": ".deep.module", "other": "..base"}
