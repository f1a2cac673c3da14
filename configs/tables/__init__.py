"""Tables of the papers: one file per table; FILE.py:SCALE."""
