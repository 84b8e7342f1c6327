"""How beliefs are learnt: guides, client SVI, server rules, the round loop, prediction."""
