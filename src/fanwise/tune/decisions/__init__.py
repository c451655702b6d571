"""The decisions of a search, apart from everything that does something: facts in, orders out."""
