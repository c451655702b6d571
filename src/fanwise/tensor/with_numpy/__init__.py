"""The parts of NumPy; `adapters.py` has their protocols."""
