"""Tracebacks of trials, without the lines that say nothing to the user: fanwise's own frames around the objective's.

Quiet: works on text, as it comes from the process of the trial.
"""

_PACKAGE = __file__.rpartition("/")[0].rpartition("/")[0] + "/"
_FRAME = '  File "'
_ELSEWHERE = "\nTraceback in process "


def of_the_user(traceback: str) -> str:
    """The traceback without frames of fanwise, if there are others; and without the same error once more, as a note."""
    lines: list[str] = []
    is_ours = False
    for line in traceback.split("\n"):
        if line.startswith(_FRAME):
            is_ours = line.startswith(_PACKAGE, len(_FRAME))
        elif not line.startswith("    "):
            is_ours = False
        if not is_ours:
            lines.append(line)
    if not any(line.startswith(_FRAME) for line in lines):
        return traceback
    text = "\n".join(lines)
    before, _, note = text.rpartition(_ELSEWHERE)
    again = note.partition("\n")[2].strip()
    return f"{before}\n" if again and before.endswith(again) else text


def before_traceback(traceback: str, output: str) -> str:
    """The output without the traceback at its end: Python prints it there as well, and there it may be cut short."""
    known, said = set(traceback.splitlines()), output.rstrip().splitlines()
    while said and said[-1] in known:
        said.pop()
    return "\n".join(said)
