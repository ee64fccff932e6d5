"""Searches over a recipe's coefficients with Ray Tune."""
