"""The modules of `peer_models` that are functions, marked as rayfed-kd asks for it."""

import peer_models

from rayfed_kd import model_builder

tiny_net = model_builder(peer_models.tiny_net)
