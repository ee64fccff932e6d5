"""Before any test, and before Ray is imported: one token for every Ray that this process meets, on loopback.

Ray keeps the mode and the token that it met first. The tests' Rays are as those that the command starts.
"""

import os
import secrets

os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # as in cluster/private_ray.py
