"""Keys: which ones are the same, their hashes, and the subtask of each."""
