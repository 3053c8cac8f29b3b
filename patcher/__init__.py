"""The engine and the command line of rlpatch; what it knows of upstream projects stands in ``patches``."""

__version__ = "0.1.0"
