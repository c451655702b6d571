"""The record of an experiment: a log of its events, and the state that follows from them."""
