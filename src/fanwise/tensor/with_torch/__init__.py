"""All that this layer knows about torch, part by part; `adapters.py` says what each provides."""
