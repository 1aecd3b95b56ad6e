"""The errors of this package, by what follows from them. Each message names the file and, where it knows it, the offset."""


class Error(Exception):
    """Any error of this package."""


class UserError(Error, ValueError):
    """An argument, a path or a target must be another. The message says what was found, and what would work."""


class DamagedFile(Error, ValueError):
    """A file is missing, cut off, or holds bytes that its format does not allow."""


class Unreadable(Error, OSError):
    """A file may be intact, but cannot be read here: no permission or memory, a newer format, unknown content."""


class SystemFailure(Error, OSError):
    """The system refused: a disk is full, a folder cannot be written."""
