"""The parts of NumPy; `adapters.py` lists their functions."""
