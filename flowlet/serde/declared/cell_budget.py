"""``CellBudget``: limits what the bytes of one element may expand to.

Side:   pure.
Units:  a cell is a value of a column, or a part of a container; about 60 bytes of memory at most.
"""

from typing import Final

from flowlet.errors import SerdeError

# Constants, nulls and containers cost few bytes or none.  2 Mi cells are a chunk of 65,536 rows with 32 such columns.
FREE_CELLS: Final = 1 << 21

MIN_MICROS: Final = -62_135_596_800_000_000  # the years 1 to 9999
MAX_MICROS: Final = 253_402_300_799_999_999


class CellBudget:
    """Counts cells before they are allocated.  Threading: one thread.

    ``most``: how many there may be; None: any number.
    """

    __slots__ = ("most", "num_taken")

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.num_taken = 0

    def __repr__(self) -> str:
        return f"<CellBudget: {self.num_taken} of {self.most}>"

    def take(self, num_cells: int) -> None:
        """Count ``num_cells``.  Raises SerdeError: they are too many."""
        self.num_taken += num_cells
        if self.most is not None and self.num_taken > self.most:
            raise SerdeError(f"the bytes stand for {self.num_taken} values or more, allowed are {self.most}")


def most_cells(num_bytes: int, free_cells: int = FREE_CELLS) -> int:
    """The limit of an element of this size."""
    return free_cells + num_bytes
