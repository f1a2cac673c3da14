"""Files, datasets and inputs in Python, as examples of tasks."""
