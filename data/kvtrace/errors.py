"""The one exception that a user's mistake or bad data raises; the command line prints it."""

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_BAD_DATA = 3
EXIT_INTERRUPTED = 130


class CaptureError(Exception):
    """A one-line message for the user, with the exit code that the command ends with."""

    def __init__(self, message: str, exit_code: int = EXIT_BAD_DATA):
        super().__init__(message)
        self.exit_code = exit_code
