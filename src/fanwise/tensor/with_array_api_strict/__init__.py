"""array-api-strict, the reference of `check_portable`: no engine, and only the parts that it needs."""
