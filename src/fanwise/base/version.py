"""The version of fanwise. A test compares it with pyproject.toml."""

VERSION = "0.3.0"
