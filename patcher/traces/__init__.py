"""A trace and its cause: folders → formats → analysis → page, each a value; a new format is one file of ``formats``."""
