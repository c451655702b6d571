"""Text of others, made fit to be shown: nothing of it can drive a terminal.

What a job prints, what an exception quotes and what stands in a record may come from anybody. Control characters in it
could move the cursor, change colours, set the window's title or hide text; so could marks that change the direction of
writing. They are shown as escapes instead. The one implementation, for messages, tables, pictures and the command line.
"""


def printable(text: str) -> str:
    r"""The text with everything but letters, signs, spaces, tabs and line ends written as an escape.

    Applied twice it changes nothing more.

    >>> printable("\x1b[31mred\x07")
    '\\x1b[31mred\\x07'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _escaped(char) for char in text)


def printable_line(text: str) -> str:
    r"""As `printable`, but in one line: line ends and tabs are escapes, too.

    >>> printable_line("two\nlines")
    'two\\nlines'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "CPU"), counted(0, "GPU"), counted(1200, "trial")
    ('1 CPU', 'no GPUs', '1,200 trials')
    """
    shown = f"{number:,}" if number else "no"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
