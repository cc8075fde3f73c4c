"""The command line that the programs of this folder share: BUILD_DIR, then flags with a value (--name VALUE) or without."""
import pathlib
import sys


class Arguments:
    """Prints `doc` and ends where it is asked for, or where BUILD_DIR is missing (exit code 2)."""

    def __init__(self, doc):
        self.rest = sys.argv[1:]
        if not self.rest or self.rest[0] in ("-h", "--help"):
            print(doc)
            sys.exit(0 if self.rest else 2)
        self.build = pathlib.Path(self.rest.pop(0)).resolve()

    def has(self, flag):
        return flag in self.rest

    def value(self, flag, otherwise):
        return self.rest[self.rest.index(flag) + 1] if flag in self.rest else otherwise
