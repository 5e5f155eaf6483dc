"""A small mixture-of-experts language model, trained through Heddle and without it. ../train_tiny_moe.py runs both."""
