"""Services by name: `rpc.register("replay-buffer", value)` on one worker, `rpc.lookup("replay-buffer")` on any other.

registry.py   at the worker that keeps the value: its names; and whoever asks
directory.py  at the coordinator: which worker has which name (quiet)
"""
