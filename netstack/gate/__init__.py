"""The consumer side: input gates and their channels."""
