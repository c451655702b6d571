"""Gradients of all processes, added: what a step sees of it, and what the ways of adding have in common.

    step --nodes of the tree--> TeamSums --gradients, bucket by bucket--> AllReduce --> the sum, in every process
                                   |                                         |
                                   gather: all but the gradients             TwoShot --slices--> a Transport
                                   optimizer: whole, or slice by slice       OneShot, BackendAllReduce

contract    `AllReduce`: begin, ready, finish, abort
sums        what a step calls, made of an `AllReduce` and what all gather
two_shot    each process adds the slice that it owns; how slices travel is a `Transport`'s matter
"""
