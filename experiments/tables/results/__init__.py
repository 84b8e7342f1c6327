"""What a table's runs reached: cells, paired differences, failures; imports execution."""
