"""One module for each kind of source: what reads files, or makes data up."""
