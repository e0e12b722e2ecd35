"""Prove a stack on this machine: tiny verifier models made on the spot, and transformers' own forward to compare with."""
