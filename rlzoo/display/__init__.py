"""How results are shown and stored: plots, tables, JSON files."""
