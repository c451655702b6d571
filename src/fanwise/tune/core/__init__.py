"""The state machine of a search, which decides but performs no I/O: events in, actions out."""
