"""Distillation without real samples: imitation of one teacher, images synthesised from several."""
