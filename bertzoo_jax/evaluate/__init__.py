"""The command evaluate: what a trained network has learned."""
