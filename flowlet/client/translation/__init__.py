"""What the translation of a graph into operators asks for: sources, outputs, columns, routing at producers."""
