"""The error that users see without a traceback."""


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one sentence: what is wrong, where, what to do.

    The command line prints the message alone; any other exception keeps its traceback.
    """
