"""Actors: objects with a limited number of concurrent method calls.

    caller    calls.py --CALL with an Address--> owner    queues.py: one FIFO per actor

An actor is a value behind a reference, like any other. Its `GlobalId.local_id` is negative, so every holder of a
reference knows that calls of its methods are queued.
"""
