"""Transformations of streams of columns: windows, joins, selections of columns.

Side:   pure.
Rules:  as ``transformation``.
"""

from typing import Any, ClassVar

from flowlet.graph.transformation import Transformation, TwoInputTransformation
from netstack.late import dataclass


@dataclass(eq=False, slots=True, kw_only=True)
class SelectColumnsTransformation(Transformation):
    """The columns of ``schema`` at these ``positions``."""

    is_internal: ClassVar[bool] = True
    positions: tuple[int, ...]
    schema: Any


@dataclass(eq=False, slots=True, kw_only=True)
class LocalWindowColumnsTransformation(Transformation):
    """Parts of windows, made of columns of ``schema`` before they travel; ``layout``: how they do."""

    is_internal: ClassVar[bool] = True
    aggregation: Any
    schema: Any
    layout: Any


@dataclass(eq=False, slots=True, kw_only=True)
class WindowColumnsTransformation(Transformation):
    """Aggregations over windows of columns of ``schema``.

    ``late_tag``: the side output of rows that are too late.  ``layout``: of the parts that come in the place of rows;
        None: rows come.
    """

    aggregation: Any
    schema: Any
    late_tag: str | None = None
    layout: Any = None


@dataclass(eq=False, slots=True, kw_only=True)
class JoinColumnsTransformation(TwoInputTransformation):
    """Rows of two streams of columns with equal keys in the same window; ``function``: the description of the join."""
