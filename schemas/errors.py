"""The root of all errors of Freshet that a caller may want to catch, and the text of any error."""


class FreshetError(Exception):
    """Something cannot be done; the message is a sentence with the problem, its place and a remedy."""


class MissingLibraryError(FreshetError, ImportError):
    """An optional library cannot be imported; the message has the command that installs it."""


def one_line(error: BaseException) -> str:
    """An error's text on one line, or its type's name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
