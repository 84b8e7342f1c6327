"""Mean-field Gaussians, their flat layout and the closed-form barycentre; imports only errors."""
