"""Modules that every layer may use. They import nothing else of fanwise."""
