"""NUTS checks of guides and data quality of clients; imports federation and predictive."""
