"""Tasks that a model answers freely, written by script in words of our own. A new task is a row of
TASKS."""

from . import lookups, orders, patterns
from .kinds import KNOWN, QUESTIONS, UNKNOWN, Instance, Task, instance

TASKS: dict[str, Task] = {
    task.name: task for module in (lookups, patterns, orders) for task in module.TASKS
}

__all__ = ["KNOWN", "QUESTIONS", "TASKS", "UNKNOWN", "Instance", "Task", "instance"]
