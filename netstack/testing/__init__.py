"""Test doubles for users of the package: no sockets, no wall clock."""
