"""What a program's objects hold and reach. Nothing here calls them.

reached     what a function can reach outside of itself
contents    what a container or tensor holds, and how to put it back
compiled    what torch.compile has made of a model and its loss
"""
