"""Server rules, localized Gaussians, kinds of clients, screening; imports the algorithm protocol and below."""
