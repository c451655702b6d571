"""The parts of torch; `adapters.py` has their protocols."""
