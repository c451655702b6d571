"""Streams: a function on another worker yields items, which are sent as fast as they are consumed.

    window     flow control on both sides. A pure state machine
    producer   the worker that runs the function
    stream     the worker that consumes the items: the value of `rpc.stream`

A stream is a call with a reply in parts: the items arrive over the link of the call, in order, before the reply, which
ends them. Loss, errors and shutdown therefore work as for calls.
"""
