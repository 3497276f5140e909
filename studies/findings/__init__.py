"""Figures and tables of the study of model losses (plan.py, run by studies/losses.sh)."""
