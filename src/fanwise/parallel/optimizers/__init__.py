"""Optimizers that treat every element by itself, so that their work can be cut.

elementwise   which they are
blocked       one process updates block by block, in its cache
"""
