"""Runs a search on a pool: its event loop, searcher thread, checkpoints, control socket and board process."""
