"""From transformations to job graphs to execution graphs."""
