"""The one exception a user of rlzoo is meant to read."""


class UserError(ValueError):
    """A configuration, dataset, reward or checkpoint that rlzoo refuses.

    The message is one line that names the thing, its value and the remedy; the command line
    prints it without a traceback and exits with status 2.
    """


def nearest(name: str, choices: "list[str]") -> str:
    """Say ``did you mean 'x'?`` for the closest of the choices, or list them all.

    Args:
        name: What the user wrote.
        choices: What would have been accepted.

    Returns:
        A clause to append to an error message.
    """
    import difflib

    close = difflib.get_close_matches(name, choices)
    close.sort(key=lambda choice: sorted(choice) != sorted(name))  # swapped letters come first
    if close:
        return f"did you mean '{close[0]}'?"
    return "choose from: " + ", ".join(sorted(choices))


def one_line(error: BaseException, longest: int = 0) -> str:
    """Return what an error says, on one line.

    Args:
        error: Any.
        longest: Most characters; what is beyond is cut, and shown as such. 0 cuts nothing.
    """
    text = " ".join(str(error).split())
    return f"{text[: longest - 3]}..." if 0 < longest < len(text) else text


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, at most 200 characters, or its class name."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".")[:200] if lines else type(error).__name__
