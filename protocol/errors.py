"""The error tree, ordered by the party at fault.

    ElasticError
     +-- UserError              the request is wrong: bad file, bad value, unknown job        (exit code 2)
     +-- RequestRefused         the request is well-formed but the cluster says no            (exit code 1)
     +-- ClusterUnreachable     no controller answers at the configured address               (exit code 3)
     +-- NotAllowed             the caller lacks the right to do this                         (exit code 4)
     +-- OperatorError          a configuration file, a directory or a port is wrong          (exit code 2)
     +-- PeerError              another process sent bytes that no correct peer sends         (exit code 1)
     +-- InvalidTransition      a state machine of this project was driven wrongly: a bug     (exit code 1)

Each error class carries the exit code with which ``elasticctl`` ends, so that no caller keeps a table of its own.
"""

from __future__ import annotations


class ElasticError(Exception):
    """Root of all errors that this project raises on purpose. ``str(error)`` is one sentence for a person."""

    exit_code = 1


class UserError(ElasticError):
    """The user's input is wrong. The message names the file or option, the field, the value found and the values
    allowed.
    """

    exit_code = 2


class RequestRefused(ElasticError):
    """The cluster understood the request and refuses it; the message states the reason."""


class ClusterUnreachable(ElasticError):
    """No controller answers."""

    exit_code = 3


class NotAllowed(ElasticError):
    """The caller is authenticated, but lacks the right to do this."""

    exit_code = 4


class OperatorError(ElasticError):
    """A daemon's configuration or surroundings (file, directory, address) are wrong."""

    exit_code = 2


class PeerError(ElasticError):
    """Bytes from a peer are not a message of this protocol, or not one that this peer may send here."""


class InvalidTransition(ElasticError):
    """A state machine received an event that its state does not admit: a bug of this project. No state has changed."""
