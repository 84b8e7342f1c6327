"""Figures of reports, one kind of outcome a file; imports the schema."""
