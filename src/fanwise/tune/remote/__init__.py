"""Steering a running search from another process of the same user."""
