"""The command line: its commands, its parser, and the arguments that commands share."""
