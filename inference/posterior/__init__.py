"""What a trained federation leaves for ArviZ; imports federation and predictive."""
