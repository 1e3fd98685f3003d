"""The error tree, by whose fault an error is.

    ElasticError
     +-- UserError              the request is wrong: bad file, bad value, unknown job        (exit code 2)
     +-- RequestRefused         the request is well-formed but the cluster says no            (exit code 1)
     +-- ClusterUnreachable     nobody answers at the controller's address                    (exit code 3)
     +-- NotAllowed             the caller may not do this                                    (exit code 4)
     +-- OperatorError          a configuration file, a directory or a port is wrong          (exit code 2)
     +-- PeerError              another process sent what no correct peer sends               (exit code 1)
     +-- InvalidTransition      one of our own machines was driven wrongly: a bug             (exit code 1)

An error knows the exit code that ``elasticctl`` ends with, so that no caller has a table of its own.
"""

from __future__ import annotations


class ElasticError(Exception):
    """Root of all errors that this project raises on purpose. ``str(error)`` is one sentence for a person."""

    exit_code = 1


class UserError(ElasticError):
    """The user's input is wrong. The message names the file or option, the field, what was found, what is allowed."""

    exit_code = 2


class RequestRefused(ElasticError):
    """The cluster understood the request and refuses it, with the reason."""


class ClusterUnreachable(ElasticError):
    """No controller answers."""

    exit_code = 3


class NotAllowed(ElasticError):
    """The caller is known, but may not do this."""

    exit_code = 4


class OperatorError(ElasticError):
    """A daemon's configuration or surroundings are wrong (file, directory, address)."""

    exit_code = 2


class PeerError(ElasticError):
    """A peer's bytes are not a message of this protocol, or not one that it may send here."""


class InvalidTransition(ElasticError):
    """A state machine got an event that its state does not admit: a bug of ours. Nothing was changed."""
