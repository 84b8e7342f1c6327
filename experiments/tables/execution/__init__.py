"""Making a table's runs, in one process or several; imports declaration."""
