"""The command finetune: plan (which runs), work (one run, or several), table (scores)."""
