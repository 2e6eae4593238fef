"""The errors that fusebert raises on purpose, one family: each message is a sentence that names the file or field."""


class FusebertError(Exception):
    """Something the user can mend; the message says what and how."""


class DifferentError(FusebertError):
    """The optimised model answers differently than its precision allows; nothing was written."""


class UnsupportedError(FusebertError):
    """The input is well formed, but asks for something fusebert does not compute."""
