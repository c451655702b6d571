"""Where experiments live."""

import pytest

from fanwise.base.home import experiments_folder


def test_a_url_is_refused_with_what_can_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_HOME", "s3://bucket/home/")
    with pytest.raises(
        ValueError, match=r"(?s)FANWISE_HOME='s3://bucket/home/'.*run.save\('s3://bucket/home/run.pt'\)"
    ):
        experiments_folder()
