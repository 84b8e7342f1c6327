"""HTML pages of one run and of a comparison; imports collect and figures."""
