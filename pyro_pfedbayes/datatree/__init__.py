"""ArviZ DataTrees of posterior predictives and their files; imports errors, measures and data."""
