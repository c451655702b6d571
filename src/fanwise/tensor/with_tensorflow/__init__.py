"""fanwise's knowledge of TensorFlow, and `tf`: TensorFlow, imported without its log lines.

On import TensorFlow's C++ code writes lines about the processor and oneDNN to standard error, whatever the settings.
So the first import here buffers standard error and passes on everything else. Set TF_CPP_MIN_LOG_LEVEL=0, or import
TensorFlow first, to see them.
"""

import contextlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator

# C++ log lines of level info or warning, the notice about their order, and continuation lines.
_LOG_LINE = re.compile(
    rb"[IW]\d{4} \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |WARNING: All log messages before absl"
    rb"|To enable the following instructions|Skipping registering GPU devices"
)


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    if "tensorflow" in sys.modules or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    with tempfile.TemporaryFile() as buffered:
        try:
            stderr = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        os.dup2(buffered.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            buffered.seek(0)
            for line in buffered:
                if not _LOG_LINE.match(line):
                    os.write(stderr, line)
            os.close(stderr)


with _without_log_lines(), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations in modules that TensorFlow imports
    import tensorflow as tf

__all__ = ["tf"]
