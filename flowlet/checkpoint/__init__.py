"""Checkpoints on the task's side: barriers in, snapshot, acknowledgement out."""
