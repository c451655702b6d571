"""The record of an experiment: events and what followed from them, in one SQLite file, and the folds that read it."""
