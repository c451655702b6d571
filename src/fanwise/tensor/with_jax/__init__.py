"""The parts of JAX; `adapters.py` has their protocols."""
