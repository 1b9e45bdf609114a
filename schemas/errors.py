"""The root of all errors of Freshet that a caller may want to catch."""


class FreshetError(Exception):
    """Something cannot be done; the message is a sentence with the problem, its place and a remedy."""


class MissingLibraryError(FreshetError, ImportError):
    """An optional library cannot be imported; the message has the command that installs it."""
