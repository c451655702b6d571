"""A search at work: its loop, searcher thread, checkpoints, control socket and board process."""
