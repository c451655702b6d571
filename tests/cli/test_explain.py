"""`fanwise explain`: topics named in messages exist, and pages are readable without the files beside them."""

import re
import sys
from collections.abc import Callable

import pytest
from program_runs import Finished

from fanwise.base.errors import FanwiseError
from fanwise.cli import main
from fanwise.cli.explain import topics

Run = Callable[..., Finished]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types the command in this process."""

    def run(*arguments: str) -> Finished:
        monkeypatch.setattr(sys, "argv", ["fanwise", "explain", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Finished(ended.value.code, *capsys.readouterr())

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    return run


def classes(base: type[FanwiseError]) -> set[type[FanwiseError]]:
    subclasses = [cls for cls in base.__subclasses__() if cls.__module__.startswith("fanwise.")]
    return {base}.union(*map(classes, subclasses))


def test_every_error_names_an_existing_topic() -> None:
    named = {re.findall("fanwise explain (.*)", str(cls("it broke")))[0] for cls in classes(FanwiseError)}
    assert "worker-lost" in named and named - set(topics()) == set()


def test_every_topic_named_in_the_library_exists(library: dict[str, str]) -> None:
    named = {topic for text in library.values() for topic in re.findall(r"fanwise explain ([a-z][\w-]*)", text)}
    assert {"searchers", "quickstart"} <= named and named - set(topics()) == set()


@pytest.mark.parametrize("topic", ["worker-lost", "WorkerLostError", "Worker-Lost"])
def test_a_topic_is_one_section(run: Run, topic: str) -> None:
    done = run(topic)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("## Worker lost\n\n`WorkerLostError`: ") and done.out.count("\n## ") == 0


def test_an_error_and_a_guide_of_one_name_are_both_shown(run: Run) -> None:
    done = run("cluster")
    assert done.out.startswith("## Cluster\n") and "\n# More than one machine" in done.out


def test_without_a_topic_all_are_listed_with_summaries(run: Run) -> None:
    lines = run().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(topics())
    assert [line for line in lines if len(line) > 102] == []
    assert any(re.fullmatch(r"worker-lost +WorkerLostError: a worker process died, .*", line) for line in lines)
    assert any(re.fullmatch(r"searchers +Which searcher", line) for line in lines)


def test_pages_have_no_links_to_other_files(run: Run) -> None:
    for topic in topics():
        assert re.findall(r"\]\((?!\w+:)[^)\s]+\)", re.sub("(?ms)^```.*?^```", "", run(topic).out)) == [], topic
    assert "[all errors](" not in run("failures").out and "See also all errors" in run("failures").out


def test_an_unknown_topic_is_wrong_usage_and_suggests_the_nearest(run: Run) -> None:
    done = run("worker-lots")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "error: no topic 'worker-lots'; did you mean 'worker-lost'?\n`fanwise explain` lists all topics.\n"
    )
