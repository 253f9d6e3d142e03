"""Lengths of time as texts, such as ``10 s`` and ``1 min``.

Side:   pure.
Source: Flink ``TimeUtils.parseDuration``, ``TimeUtils.formatWithHighestUnit``.
"""

import re
from typing import Final

_DURATION: Final = re.compile(r"(\d+)\s*([a-zµ]*)", re.ASCII)
# By Flink's labels; a number alone is milliseconds.
_NANOS: Final = {
    label: nanos
    for labels, nanos in {
        "d day days": 86_400_000_000_000,
        "h hour hours": 3_600_000_000_000,
        "m min minute minutes": 60_000_000_000,
        "s sec second seconds": 1_000_000_000,
        "ms milli millis millisecond milliseconds": 1_000_000,
        "µs micro micros microsecond microseconds": 1_000,
        "ns nano nanos nanosecond nanoseconds": 1,
    }.items()
    for label in labels.split()
} | {"": 1_000_000}
_LABELS: Final = ("d", "h", "min", "s", "ms", "µs", "ns")  # in texts that we write


def duration_nanos(text: str) -> int:
    """The nanoseconds of a length of time.  Raises ValueError: the text is none."""
    found = _DURATION.fullmatch(text.strip().lower())
    nanos = None if found is None else _NANOS.get(found[2])
    if found is None or nanos is None:
        raise ValueError(text)
    return int(found[1]) * nanos


def duration_text(nanos: int) -> str:
    """The text of a length of time in the largest unit that holds it in whole numbers, as Flink writes it; of 0: ``0
    ms``.
    """
    if nanos == 0:
        return "0 ms"
    label = next(label for label in _LABELS if nanos % _NANOS[label] == 0)
    return f"{nanos // _NANOS[label]} {label}"
