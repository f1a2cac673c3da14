"""Reproduces a table of a paper: plan (which runs), work (one row), page (the table)."""
