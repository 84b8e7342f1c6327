"""Tables of methods by data sets: what they declare, how their runs are made, and how they are told."""
