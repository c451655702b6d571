"""What a search shows in a terminal or a log."""
