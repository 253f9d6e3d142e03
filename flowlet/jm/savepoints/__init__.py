"""The savepoints of jobs, as users ask for them."""
