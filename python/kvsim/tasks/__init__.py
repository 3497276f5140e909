"""Tasks that a model answers freely, written by script in words of our own. A new task is a row of
TASKS."""

from .builtin import TASKS
from .kinds import KNOWN, QUESTIONS, UNKNOWN, Instance, Task, instance

__all__ = ["KNOWN", "QUESTIONS", "TASKS", "UNKNOWN", "Instance", "Task", "instance"]
