"""Escaping of untrusted text for terminals, figures and messages.

The output of a job, the text of an exception and the contents of a record may come from someone else. Control
characters could move the cursor, change colors, set the title of the window or hide text, and so could marks for the
direction of writing. They are shown as escape sequences.
"""


def printable(text: str) -> str:
    r"""Return the text with unprintable characters escaped, except tabs and line ends. Idempotent.

    >>> printable("\x1b[31mred\x07")
    '\\x1b[31mred\\x07'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _escaped(char) for char in text)


def printable_line(text: str) -> str:
    r"""Return the text in one line: like `printable`, with tabs and line ends escaped.

    >>> printable_line("two\nlines")
    'two\\nlines'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "CPU"), counted(0, "GPU"), counted(1200, "trial")
    ('1 CPU', 'no GPUs', '1,200 trials')
    """
    shown = f"{number:,}" if number else "no"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
