"""The former name of `plugin`, so that policies written for version 0.1 load unchanged."""

from .plugin import Floats as Floats
from .plugin import Ints as Ints
from .plugin import JobTable as JobTable
from .plugin import PolicyPlugin
from .plugin import Shares as Shares

OwnPolicy = PolicyPlugin
