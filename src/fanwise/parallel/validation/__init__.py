"""Checks of what the user passes and does, and of whether the result depends on the devices."""
