"""Text: escaping for other languages, tables and progress on terminals, unique names."""
