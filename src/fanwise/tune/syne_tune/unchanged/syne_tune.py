"""`import syne_tune` in a program that is run unchanged, and in its trials: see its_names.py."""

from fanwise.tune.syne_tune.its_names import install

install()
