"""All that this layer knows about JAX, part by part; `adapters.py` says what each provides."""
