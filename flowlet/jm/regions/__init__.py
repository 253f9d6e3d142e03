"""Which parts of a job restart without the others, and what of a job belongs to such a part."""
