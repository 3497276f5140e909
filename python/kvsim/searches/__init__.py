"""Searches over records of policies, driven by Optuna (docs/search.md)."""
