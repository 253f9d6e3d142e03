"""Flow control as pure objects: who may send, and who sends next."""
