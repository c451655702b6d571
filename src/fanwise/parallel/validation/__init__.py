"""Checks of arguments and of the training function, so that the result does not depend on the devices."""
