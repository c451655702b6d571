"""Actors: objects of which at most so many calls run at a time, and which are made again when their worker is lost.

    caller    calls.py --CALL with an Address--> owner    queues.py: a queue for each actor
                                                          turns.py decides whose turn it is
    creator   supervision.py makes it again when its worker is lost; restarts.py decides

An actor is a value behind a reference, like any other; its number (`GlobalId.local_id`) is below zero, so whoever gets
a reference knows without asking that calls of its methods wait for their turns.
"""
