"""The allow-list: restricts the functions and classes that received calls may name.

allowing   the list
reading    a reader of pickles that creates and calls only allowed names
hints      advice for a refused name. Pure
"""
