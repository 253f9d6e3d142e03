"""The class of mutants.

Side:   any.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant: one bug, and the test that finds it."""

    id: str
    flink: str
    breaks: str
    module: str
    old: str
    new: str
    killed_by: str
