"""Streams: a function on another worker gives its results one by one, as fast as they are taken.

    window (quiet)   how far the one may be ahead of the other; what of a stream is here, and how it ends
    producing        the worker that runs the function
    reading          the worker that takes the items: what `rpc.stream` returns

A stream is a call with an answer in many parts: the items come over the link of the call, in order, before its answer,
which ends them. So loss, cuts, errors and shutdown are those of calls.
"""
