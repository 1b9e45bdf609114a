"""The root of all errors of Freshet that a caller may want to catch."""


class FreshetError(Exception):
    """Something cannot be done; the message is a sentence that names the problem, its place and a remedy."""
