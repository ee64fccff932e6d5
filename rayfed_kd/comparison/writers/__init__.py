"""One module per way to show a comparison: screen, Markdown, LaTeX, Parquet, pictures."""
