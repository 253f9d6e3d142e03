"""The mailbox of a task, the loop that runs its mails, and the measurement of its time."""
