"""The configs: one file per system, in tasks/ per benchmark, in tables/ per table of a paper.

bertzoo_jax.configs is a link to this folder.
"""
