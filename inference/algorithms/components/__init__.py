"""What several algorithms or only one of them use: splits, trees, matching, memory; imports server and engine."""
