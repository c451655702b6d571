"""What every layer may use: the tree of errors, clocks. Imports nothing of fanwise."""
