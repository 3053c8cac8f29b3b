"""Planned bytes through the import system.

`folder` lays them out, `startup` hands them out in each process, `parent` runs the command; `guards.gaps` knows where
the way from one to the other is cut.
"""
