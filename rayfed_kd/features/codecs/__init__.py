"""Codecs: what a recipe may name to make parts smaller, and the wire that encodes and decodes with them."""
