"""What a chain of operators is made of: the operator, the loop that runs through all of them, and the ways out."""
