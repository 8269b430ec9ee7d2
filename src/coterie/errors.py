"""What went wrong, in one sentence a user can act on.

Every error that a user can cause is a `CoterieError`: it says what was wrong, where, and what would be
right. The command line prints that sentence and exits with code 2; a traceback means a bug of ours.
"""


class CoterieError(Exception):
    """Base class of all errors that a user can cause."""


class DataError(CoterieError):
    """Client data that cannot be used: an empty client, NaN, shapes that differ, labels out of range."""


class SettingError(CoterieError):
    """A setting with an impossible value, such as more clusters than clients."""


class LearnerError(CoterieError):
    """A learner that does not fit the data, or whose training diverged."""


class ClientError(CoterieError):
    """A client failed while it carried out a task; the message names both."""


class ConfigError(CoterieError):
    """An experiment file or a set of options that cannot be understood; the message names the key."""


class RunFolderError(CoterieError):
    """A run folder that is missing, damaged, or belongs to another experiment."""


class StorageError(CoterieError):
    """The disk refused a write; what was written before is intact."""


class FederationError(CoterieError):
    """Too few clients of a real federation are there or answer."""


def diverged(when: str) -> LearnerError:
    """The error for training that no longer ends in numbers."""
    return LearnerError(f"training diverged {when}: lower the learning rate, or clip gradients.")


def whole_number(name: str, value: object, least: int) -> None:
    """Refuse a setting that is no whole number, or too small."""
    if type(value) is not int or value < least:
        raise SettingError(f"{name} must be a whole number from {least} up, not {value!r}.")


def one_of(name: str, value: object, *allowed: object) -> None:
    """Refuse a setting that is none of the allowed ones."""
    if value not in allowed:
        words = " or ".join(repr(choice) for choice in allowed if choice is not None)
        raise SettingError(f"{name} must be {words}, not {value!r}.")
