"""`heddle doctor`: what this machine offers, which way ranks reach one another and why, and whether it works."""
