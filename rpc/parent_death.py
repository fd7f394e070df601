"""Whether a service outlives its launcher, as `core/parent_death.py` decides it."""

from core.parent_death import PARENT_KEY, before_exec, child_environment, die_with_parent

__all__ = ["PARENT_KEY", "before_exec", "child_environment", "die_with_parent"]
