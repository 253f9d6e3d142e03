"""The class of mutants.

Side:   any.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug."""

    id: str
    flink: str
    breaks: str
    module: str
    old: str
    new: str
    killed_by: str
