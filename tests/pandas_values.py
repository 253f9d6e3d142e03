"""The missing values of pandas, and a time finer than Python's; where pandas is not installed, doubles with their
names.
"""

import datetime
from typing import Any


class NaTType(datetime.datetime):
    """The class of a double of ``pandas.NaT``, a datetime that is none."""

    def __repr__(self) -> str:
        return "NaT"

    __str__ = __repr__


class NAType:
    """The class of a double of ``pandas.NA``."""

    def __repr__(self) -> str:
        return "<NA>"


class Timestamp(datetime.datetime):
    """A double of ``pandas.Timestamp``."""

    nanosecond = 5


NAT: Any
NA: Any
FINE: Any  # five nanoseconds after the begin of 1970
try:
    import pandas
except ImportError:
    NAT, NA, FINE = NaTType(1, 1, 1), NAType(), Timestamp(1970, 1, 1)
else:
    NAT, NA, FINE = pandas.NaT, pandas.NA, pandas.Timestamp(5)
