"""The definition of every part: one file per axis, one function per part. It has the part's fields
with their defaults, ranges and meanings, and is the constructor of its section in a config.

Nothing here imports a framework. The parts themselves are in batches/, model/, objectives/,
training/ and tasks/ under the same names.
"""
