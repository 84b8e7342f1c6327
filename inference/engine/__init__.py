"""Client steps: recording, noise, optimizer, schedules, devices; imports beliefs and objective."""
