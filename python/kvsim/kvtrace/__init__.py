"""Captures what a Hugging Face causal LM puts into its attention layers, as kvtrace v1 files."""
