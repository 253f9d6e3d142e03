"""States, their descriptors, and the lifetime of their entries."""
