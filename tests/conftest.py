"""Before any test: one mode of authentication for every Ray that this process meets.

Ray remembers the mode of the first; unset it would be `token` for a private Ray, while the command's own
private Rays, on loopback, have none.
"""

import os

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
