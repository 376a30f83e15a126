"""dsforge: what fits, how fast it will be, and every file to launch it.

The core (specs, layout, strategy, rules, estimates, plan, planner) is importable on a laptop
without torch: `from dsforge.planner import choose`.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
