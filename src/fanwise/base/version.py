"""The version of this library, for records and `fanwise.__version__`; the same as in pyproject.toml (a test looks)."""

VERSION = "0.3.0"
