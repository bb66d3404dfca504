"""The tiny backend: RLVR of a real transformer, in seconds of one CPU core.

The model has the layout of Qwen2 and about 100,000 parameters. Pretraining makes it from scratch
for a task over a small alphabet, so no weights and no data are downloaded.
"""
