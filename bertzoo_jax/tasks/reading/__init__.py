"""Files and datasets of tasks, as examples."""
