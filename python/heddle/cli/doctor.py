"""`heddle doctor`."""


def command() -> None:
    """Says what this machine offers and which way ranks would reach one another."""
