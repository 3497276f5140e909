"""Searches over records of policies, driven by Optuna (docs/cli.md 7)."""
