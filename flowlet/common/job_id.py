"""``JobID``: the id of a submitted job.

Side:   pure.
Source: PyFlink ``pyflink.common.job_id``.
"""

from netstack.late import dataclass

__all__ = ["JobID"]


@dataclass(frozen=True, slots=True, repr=False)
class JobID:
    """The id of one submitted job; its ``str`` is 32 hex digits."""

    hex_digits: str

    def __post_init__(self) -> None:
        if len(self.hex_digits) != 32 or not set(self.hex_digits) <= set("0123456789abcdef"):
            raise ValueError(f"a job id has 32 lower-case hex digits, got {self.hex_digits!r}")

    def __str__(self) -> str:
        return self.hex_digits

    def __repr__(self) -> str:
        return f"JobID({self.hex_digits})"
