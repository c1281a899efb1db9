"""The error that the command line prints without a traceback."""


class InputError(ValueError):
    """Invalid input: an argument, a file or a folder. The message says what is wrong, where, and what to do.

    The command line prints the message. Other exceptions keep their traceback.
    """
