"""The one exception that a user's mistake or bad data raises."""

from ..errors import EXIT_BAD_DATA, EXIT_FAILURE, EXIT_USAGE, Error

__all__ = ["EXIT_BAD_DATA", "EXIT_FAILURE", "EXIT_USAGE", "CaptureError", "Error"]


class CaptureError(Error):
    """A one-line message for the user, with the exit code that the command ends with."""

    def __init__(self, message: str, exit_code: int = EXIT_BAD_DATA):
        super().__init__(message)
        self.exit_code = exit_code
