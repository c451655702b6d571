"""The line that shows how a run goes, in a real terminal: nothing is torn, and what does not fit is left out."""

import re
from pathlib import Path

import pytest

import fanwise
from fanwise.testing.terminals import output_in_a_terminal

SOURCES = Path(fanwise.__file__).parents[1]

PROGRAM = """
import logging, sys
from fanwise.parallel.progress.pace import RunSnapshot
from fanwise.parallel.progress.line import screen_for

logging.basicConfig(format="%(message)s")      # holds the stream itself
out = sys.stdout                               # so does this
def at(done):
    return RunSnapshot("train", ("cpu",), 0, 3, done, 1000, 100.0, 0.5, 20.0, 5.0)

print("before")
screen = screen_for(True)
screen.show(at(100))
print("printed", 1)
out.write("held\\n")
logging.warning("logged")
print("asked: ", end="", flush=True)
screen.show(at(200))
print("answered")
screen.show(at(300))
sys.stdout.writelines(["two\\n", "lines\\n"])
screen.show(RunSnapshot("train", ("cpu",), 2, 3, 1000, 1000, 99.0, 0.25, None, 9.0, is_over=True))
screen.close()
print("after", "write" in vars(sys.stdout), "write" in vars(sys.stderr))
"""


# One process for all widths: to load the library takes seconds.
WIDTHS = (100, 40)
IN_ALL_WIDTHS = f"""
import os
import sys
for width in sys.argv[1:]:
    os.environ["COLUMNS"] = width
    exec({PROGRAM!r}, {{}})
    print(end="\\f", flush=True)
"""


@pytest.fixture(scope="module")
def output_by_width() -> dict[int, str]:
    """What the program writes to a terminal, with all that steers it."""
    *outputs, rest = output_in_a_terminal(IN_ALL_WIDTHS, *map(str, WIDTHS)).split("\f")
    assert rest == "", rest
    return dict(zip(WIDTHS, outputs, strict=True))


def screen_of(text: str) -> list[str]:
    """The lines that a terminal shows after this text: knows line ends, going back, wiping and colours."""
    lines, column = [""], 0
    for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\n":
            lines.append("")
            column = 0
        elif token == "\r":
            column = 0
        elif token == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif token.startswith("\x1b"):
            assert token.endswith("m"), f"only colours: {token!r}"
        else:
            lines[-1] = lines[-1][:column].ljust(column) + token + lines[-1][column + len(token) :]
            column += len(token)
    return lines


def test_in_a_terminal_nothing_that_is_printed_is_torn_and_the_last_line_stays(output_by_width: dict[int, str]) -> None:
    text = output_by_width[100]
    printed = ["before", "printed 1", "held", "logged", "asked: answered", "two", "lines"]
    last = "train  epoch 3/3  loss 0.25  99 samples/s  in 0:09  cpu"
    assert screen_of(text) == [*printed, last, "after False False", ""]
    first = "train  epoch 1/3  100/1,000 samples  loss 0.5  100 samples/s  0:20 left  cpu"
    assert screen_of(text[: text.index("printed")])[-1] == ""
    assert screen_of(text[: text.index("held")])[:2] == ["before", "printed 1"]
    colourless = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert colourless.count(first) == 4  # drawn, and again below each of three texts
    assert "200/1,000" in colourless[colourless.index("answered") :]
    assert "200/1,000" not in colourless[: colourless.index("answered")]


def test_a_narrow_terminal_gets_what_fits(output_by_width: dict[int, str]) -> None:
    text = output_by_width[40]
    shown = [line for line in screen_of(text) if line.startswith(("train", "epoch"))]
    assert shown == ["epoch 3/3  loss 0.25  in 0:09  cpu"]
