"""The one error of the parsers: input that is not what its format says, with the place and the next step."""


class FormatError(ValueError):
    """A file cannot be read as its format. The message names the place; the caller adds the file's name."""
