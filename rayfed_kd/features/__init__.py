"""What a recipe may ask for beside plain rounds: codecs for messages, and privacy of clients."""
