"""Clusters of these tests set up logging as in a user's program; afterwards it is as it was."""

from tests.quiet_logging import unconfigured_logging

__all__ = ["unconfigured_logging"]
