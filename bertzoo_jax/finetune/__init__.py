"""Fine-tunes pretrained weights on labelled rows: plan (which runs), work (one run, or several at a
time), table (scores). The command is in `__main__`.
"""
