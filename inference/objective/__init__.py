"""The client's objective: ELBO, gradient estimators, reparameterization handlers, replayed noise; imports models."""
