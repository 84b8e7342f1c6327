"""From a run's files to the numbers of its report; imports files and statistics."""
