"""The parts of torch; `adapters.py` lists their functions."""
