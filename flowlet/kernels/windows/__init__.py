"""Windows and joins of columns in numpy and Arrow arrays."""
