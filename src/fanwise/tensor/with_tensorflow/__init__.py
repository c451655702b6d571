"""All that this layer knows about TensorFlow, part by part; `adapters.py` says what each provides.

And `tf`: TensorFlow, imported without its greetings. Every other file that needs TensorFlow may take it from here.

On import TensorFlow's C++ code writes lines about the processor and oneDNN to the standard error of the process,
whatever the settings say; Python cannot catch them. So the first import here holds the standard error back and
lets through what is no greeting. Nothing is changed for later, and who has set TF_CPP_MIN_LOG_LEVEL=0 or has
imported TensorFlow himself sees all there is to see.
"""

import contextlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator

# Lines of C++ logs at level info or warning, the notice about their order, and lines that go on from one before.
_GREETING = re.compile(
    rb"[IW]\d{4} \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |WARNING: All log messages before absl"
    rb"|To enable the following instructions|Skipping registering GPU devices"
)


@contextlib.contextmanager
def _no_greetings() -> Iterator[None]:
    if "tensorflow" in sys.modules or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(tempfile.TemporaryFile())
        try:
            shown = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(shown, 2)
            held.seek(0)
            for line in held:
                if not _GREETING.match(line):
                    os.write(shown, line)
            os.close(shown)


with _no_greetings(), warnings.catch_warnings():
    # Modules that TensorFlow imports use what Python is about to remove; the user cannot mend that.
    warnings.simplefilter("ignore")
    import tensorflow as tf

__all__ = ["tf"]
