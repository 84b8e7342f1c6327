"""Tables that come with the package."""
