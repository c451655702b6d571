"""The process that speaks with Ray: how it is started, and what the pool does when it ends."""

import threading
from pathlib import Path

import pytest

from fanwise.pool.cluster.ray_process import News, RayProcess


def test_modules_in_the_working_folder_do_not_shadow_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    heard: list[News] = []
    ended = threading.Event()

    def hear(news: News) -> None:
        heard.append(news)
        if news["kind"] == "gone":
            ended.set()

    process = RayProcess({"address": "127.0.0.1:1", "folder": str(tmp_path / "pool")}, tmp_path / "log", hear)
    process.start()
    try:
        assert ended.wait(60)
    finally:
        process.close()
    assert [news["kind"] for news in heard] == ["fatal", "gone"], process.last_lines()
