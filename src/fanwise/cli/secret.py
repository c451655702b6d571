"""The command `fanwise secret`."""

from pathlib import Path

from ..base.text import printable_line
from ..links.shared_secret import FILE_VARIABLE, new_secret, write_secret


def secret_line(file: Path | None) -> str:
    """Return a new secret, or write it to `file` and return a message. Raises OSError, FileExistsError."""
    if file is None:
        return new_secret()
    try:
        write_secret(file)
    except FileExistsError as error:
        raise FileExistsError(
            f"{file} exists and was not changed, because processes may use its secret.\n"
            f"Choose another path, or remove the file first."
        ) from error
    except OSError as error:
        raise OSError(
            f"the secret cannot be written to {str(file)!r}: {error.strerror}. Name a new file in a folder of yours."
        ) from error
    shown = printable_line(str(file.absolute()))
    return f"wrote {shown}; copy it to every host and set {FILE_VARIABLE} to its path there"
