"""What a table's file declares, checked, and the runs it takes; imports config."""
