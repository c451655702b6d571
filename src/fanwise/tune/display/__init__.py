"""Output of a search in a terminal, notebook or log."""
