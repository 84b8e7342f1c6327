"""What a client holds: guides, sites, private guides, point beliefs; imports objective and models."""
