"""What every layer may use: the tree of errors, clocks, where experiments live. Imports nothing of fanwise."""
