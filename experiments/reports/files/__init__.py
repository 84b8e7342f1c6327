"""What a run's folder holds, read with whatever is missing or damaged named; imports runs and the schema."""
