"""Test doubles for users of flowlet."""
