"""Removes fanwise's own frames from the tracebacks of trials."""

_PACKAGE = __file__.rpartition("/")[0].rpartition("/")[0] + "/"
_FRAME = '  File "'
_ELSEWHERE = "\nTraceback in process "


def of_the_user(traceback: str) -> str:
    """Return the traceback without fanwise's frames, unless it has no others, and without a note that repeats it."""
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
    noted = note.partition("\n")[2].strip()
    return f"{before}\n" if noted and before.endswith(noted) else text


def before_traceback(traceback: str, output: str) -> str:
    """Return the output without the traceback that Python prints at its end, which may be truncated."""
    known, lines = set(traceback.splitlines()), output.rstrip().splitlines()
    while lines and lines[-1] in known:
        lines.pop()
    return "\n".join(lines)
