"""What an expression's text becomes: a tree, typed steps, and the source of a kernel."""
