"""The mailbox thread model: stream tasks, their inputs and outputs."""
