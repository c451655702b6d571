"""The decisions of a search, apart from everything that does something: events in, actions out."""
