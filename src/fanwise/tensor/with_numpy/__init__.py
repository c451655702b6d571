"""All that this layer knows about numpy, part by part; `adapters.py` says what each provides."""
