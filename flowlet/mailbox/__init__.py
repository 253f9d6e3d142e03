"""The mailbox of a task: letters to its thread, the loop that reads them, and where its time goes."""
