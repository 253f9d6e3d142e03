"""What users would pick instead: each module runs the same work in another system, if it is installed."""
