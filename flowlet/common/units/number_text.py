"""``number_text``: the text that Java gives a number.

Side:   pure.
Source: Java ``Double.toString``.
"""

import decimal
import math
from typing import Final

# Java writes numbers outside of this range with an exponent.
_PLAIN_EXPONENTS: Final = range(-3, 7)


def java_name(value: float) -> str:
    """Java's name of what is no finite number."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def number_text(value: float, shortest: str | None = None) -> str:
    """The text of a number of 64 bits; ``shortest``: the shortest text of one of fewer bits, in Python's form."""
    shortest = repr(float(value)) if shortest is None else shortest
    if 0.001 <= abs(value) < 10_000_000.0 and "e" not in shortest:
        return shortest  # Python's text is Java's there: 0.5 us in place of 4 us
    if not math.isfinite(value):
        return java_name(value)
    if value == 0:
        return "-0.0" if shortest.startswith("-") else "0.0"
    sign, digits, exponent = decimal.Decimal(shortest).normalize().as_tuple()
    if len(digits) == 1:  # Java gives at least two digits, which are the two closest ones
        sign, digits, exponent = decimal.Decimal(f"{value:.1e}").as_tuple()
    assert isinstance(exponent, int), "a finite number has one"
    text, power = "".join(map(str, digits)), len(digits) - 1 + exponent
    minus = "-" if sign else ""
    if power not in _PLAIN_EXPONENTS:
        return f"{minus}{text[0]}.{text[1:].rstrip('0') or '0'}E{power}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{text.rstrip('0')}"
    whole = text[: power + 1].ljust(power + 1, "0")
    return f"{minus}{whole}.{text[power + 1 :].rstrip('0') or '0'}"
