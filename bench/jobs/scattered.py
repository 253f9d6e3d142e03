"""Numbers that look random and are a pure function of a position: every engine and every process draws equal ones.

Side:   pure; it runs in the Pythons of the peers too, so it imports nothing.
Source: the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
"""

from typing import Final

_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15


def scattered(number: int, draw: int = 0) -> int:
    """Return 64 bits for a number; ``draw`` tells apart the draws that are made for one number."""
    bits = (number * 16 + draw + 1) * _GAMMA & _MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _MASK
    return bits ^ bits >> 31


def below(limit: int, number: int, draw: int = 0) -> int:
    """Return one of 0 .. limit - 1."""
    return scattered(number, draw) % limit
