"""Evaluation: of shared models, of clients' own ones, by metrics that a recipe names."""
