"""The tiny backend: real RLVR of a real transformer, in seconds of one CPU core.

The model has the layout of Qwen2 and about 100,000 parameters; it is trained from nothing on
a task over a small alphabet, so neither weights nor data are downloaded.
"""
