"""A running search: its event loop, searcher thread, checkpoints, control socket and board process."""
