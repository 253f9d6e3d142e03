"""The `flowlet` command."""
