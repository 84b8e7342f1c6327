"""Models that come with the package, one kind of outcome a file; imports the rest of models."""
