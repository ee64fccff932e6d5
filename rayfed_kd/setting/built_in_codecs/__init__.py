"""The codecs that a recipe may name: rayfed_kd/setting/message_codecs.py lists them."""
