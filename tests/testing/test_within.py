"""`within`: returns when the fact holds, and says enough when it does not."""

import subprocess
import sys
import threading

import pytest

from fanwise.testing import within


def test_a_fact_that_holds_is_asked_once() -> None:
    asked: list[int] = []

    def fact() -> str:
        asked.append(1)
        return "here"

    assert within(0.0, fact, "it is here") == "here"
    assert len(asked) == 1


def test_a_fact_is_asked_until_it_holds() -> None:
    answers = iter([None, 0, "", 7])
    assert within(60.0, lambda: next(answers), "seven") == 7


def test_a_fact_of_another_thread_is_seen() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.set)
    thread.start()
    assert within(60.0, done.is_set, "the thread ran") is True
    thread.join()


def test_what_a_fact_raises_is_raised_at_once() -> None:
    nothing: dict[str, int] = {}
    with pytest.raises(KeyError, match="'broken'"):
        within(60.0, lambda: nothing["broken"], "never")


def test_a_missing_fact_is_named_with_its_last_answer() -> None:
    with pytest.raises(AssertionError, match=r"^not within 0.01 s: two idle workers \(the last value was 0\)"):
        within(0.01, lambda: 0, "two idle workers")


def test_the_message_shows_the_stacks_of_all_threads() -> None:
    release = threading.Event()

    def a_thread_that_waits() -> None:
        release.wait()

    thread = threading.Thread(target=a_thread_that_waits, name="waiter", daemon=True)
    thread.start()
    with pytest.raises(AssertionError) as caught:
        within(0.0, lambda: False, "never")
    release.set()
    thread.join()
    text = str(caught.value)
    assert "thread waiter (daemon):" in text
    assert "in a_thread_that_waits" in text
    assert "thread MainThread:" in text


def test_it_is_told_when_there_are_no_child_processes() -> None:
    code = "from fanwise.testing.within import describe_children; print(describe_children(), end='')"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "no child processes\n"


def test_the_message_shows_the_child_processes() -> None:
    script = "import signal, sys; print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", script, "child-of-a-test"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(AssertionError) as caught:
            within(0.5, lambda: False, "never")
        child.kill()
    text = str(caught.value)
    assert f"process {child.pid}: {sys.executable} -c {script} child-of-a-test" in text
    assert "sleeping, parent" in text
