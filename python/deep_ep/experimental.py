"""The experimental parts of V2, over dispatches along rank maps. One host."""

from __future__ import annotations


class Experimental:
    """Mixed into ElasticBuffer."""
