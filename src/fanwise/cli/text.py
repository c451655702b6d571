"""Text from records and users, made fit to be printed: nothing of it can drive a terminal.

A record may come from somebody else, and an exception may quote anything; a name or message with escape sequences in it
must not move the cursor, change colours or set the window's title.
"""


def plain_line(text: str) -> str:
    """`text` in one line; everything that does not print is shown as an escape.

    >>> plain_line("a" + chr(27) + "[31m" + chr(10) + "b")
    'a\\\\x1b[31m\\\\nb'
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def plain_text(text: str) -> str:
    """As `plain_line`, but line ends and tabs stay what they are.

    >>> plain_text("first" + chr(10) + chr(7) + "second")
    'first\\n\\\\x07second'
    """
    return "\n".join("\t".join(map(plain_line, line.split("\t"))) for line in text.split("\n"))
