"""Pictures: what an input expects of them, how files become samples, and what outputs say of them."""
