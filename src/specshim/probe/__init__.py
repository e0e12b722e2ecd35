"""Prove a stack on this machine: tiny models made on the spot, and transformers' own forward to compare with."""
