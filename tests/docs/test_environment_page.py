"""The page of environment variables has all that the library reads under its own name."""

import re
from pathlib import Path

MARK_OF_THE_POOL = {"FANWISE_LINE"}  # set by the pool for itself


def test_every_variable_has_its_line(library: dict[str, str], repository: Path) -> None:
    texts = (text for path, text in library.items() if not path.startswith("testing/"))
    read = {name for text in texts for name in re.findall(r"\bFANWISE_[A-Z_]*[A-Z]\b", text)}
    described = set(re.findall(r"^\| `(\w+)`", (repository / "docs" / "environment.md").read_text(), re.MULTILINE))
    assert described == read - MARK_OF_THE_POOL
