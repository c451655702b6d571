"""Who updates what of an optimizer; those that treat every element by itself can be cut.

placement               whole, or each process its slice
elementwise             which can be cut
sharded, sliced_state   each process updates its slice; the state until somebody looks into it
"""
