"""Which waiting call goes to which host, when, and how long it may take."""
