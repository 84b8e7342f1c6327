"""What a client believes: networks, likelihoods, and the Pyro model they make."""
