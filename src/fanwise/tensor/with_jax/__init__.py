"""The parts of JAX; `adapters.py` lists their functions."""
