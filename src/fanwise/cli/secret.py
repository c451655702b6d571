"""What `fanwise secret` does: one line to show. The secret itself is made in `links.shared_secret`.

Shown, it is meant for a variable or a secret store; in a file, it is shown to nobody.
"""

from pathlib import Path

from ..base.text import printable_line
from ..links.shared_secret import FILE_VARIABLE, new_secret, write_secret


def secret_line(file: Path | None) -> str:
    """A fresh secret; with `file`, where it was written. Raises `FileExistsError` rather than replace one in use."""
    if file is None:
        return new_secret()
    try:
        write_secret(file)
    except FileExistsError as error:
        raise FileExistsError(
            f"{file} is there already and was left as it is: processes may be using the secret in it.\n"
            f"Choose another path, or remove it first."
        ) from error
    except OSError as error:
        raise OSError(
            f"the secret cannot be written to {str(file)!r}: {error.strerror}. Name a new file in a folder of yours."
        ) from error
    shown = printable_line(str(file.absolute()))
    return f"wrote {shown}; copy it to every host and set {FILE_VARIABLE} to its path there"
