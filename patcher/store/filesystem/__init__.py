"""The dangers of file systems to a store: each module owns one danger.

`opened` reaches a folder without following links; `files` observes and replaces a file in one step; `rights` keeps
owner, mode and attributes; `bytecode` finds what was compiled; `lock` keeps other processes out, on one host or
several; `mounts` tells what lies on what.
"""
