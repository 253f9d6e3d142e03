"""The inputs of a gate, and what each receives into and keeps."""
