"""The embedded cluster of a test sets up logging as it does in a user's program."""

from tests.quiet_logging import unconfigured_logging

__all__ = ["unconfigured_logging"]
