"""A table's page and files in Markdown, HTML, LaTeX and CSV; imports results."""
