"""The classes and callables that users write, and their checks."""
