"""`syne_tune.optimizer`."""
