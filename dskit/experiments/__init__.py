"""Training runs on ranks: a small model with a frozen part, its modes, and what a run leaves behind."""
