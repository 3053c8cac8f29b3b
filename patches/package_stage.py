"""A stage whose recorder stands at the end of a package, and the lines in the package's modules that call it.

A process imports the package first, whichever module it is after: so the recorder stands at the end of the package's
``__init__.py``, and each line at a call site looks for it there. Some of these functions are pickled by value (verl
makes classes of workers and sends them to others), and a name of the module would go with them. A process that imported
the package before it was patched, and a module of it afterwards, has lines without a recorder: they do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from patcher.config import WHOLE, ProfileConfig
from patcher.messages import Note, Text
from patcher.recipe import Anchor, Around, Head, Insertion, Probe, Recipe, Structure
from patches.releases import Releases

Site = tuple[str, str, str]
"""A function's path within its module, the call of the recorder at its head, and the reason, for users."""


class PackageStage:
    """Recipes of a stage in `releases` of `package`; each subclass is a stage.

    `AT_HEAD` and `AROUND` name the local variables that keep what a call of the recorder returns, until the function or
    the statement ends. `RECORDER` is the name and description of the recorder's recipe, `NOTES` its notes.
    """

    STAGE: ClassVar[str]
    WHY: ClassVar[str]
    HOW: ClassVar[str]
    REMOVE_WHEN: ClassVar[str]
    AT_HEAD: ClassVar[str]
    AROUND: ClassVar[str]
    RECORDER: ClassVar[tuple[str, str]]
    NOTES: ClassVar[tuple[Note, ...]] = ()

    def __init__(self, package: str, releases: Releases) -> None:
        self.package = package
        self.releases = releases

    @staticmethod
    def summary(config: ProfileConfig[Any]) -> str:
        """Return a sentence on what is recorded, for the plan and for a comment in the patched file."""
        raise NotImplementedError

    @property
    def recorder(self) -> str:
        """Expression for the recorder, None at run time if the package has none."""
        return f'(_rlpatch := getattr(__import__("{self.package}"), "_rlpatch_stage", None))'

    def with_recorder(self, sites: Iterable[Recipe], probe: Probe) -> tuple[Recipe, ...]:
        """Return the recipe that puts the recorder of `probe` into the package, followed by the recipes of its `sites`.

        `sites` are recipes for the files whose functions call the recorder. The returned ones need each other, so that
        recorder and sites are only patched together.
        """
        sites, (name, how) = tuple(sites), self.RECORDER
        calls = (line for site in sites for insertion in site.insertions for line in insertion.lines)
        probe = probe._replace(summary=self.summary, callers=(*calls, *probe.callers))
        shape = Text("Python imports this file before all other modules of the package")
        recorder = self._recipe(name, "__init__.py", self.releases, shape, probe)._replace(
            how=how, upstream=f"{self.package}/__init__.py", notes=self.NOTES, needs=tuple(site.name for site in sites)
        )
        return (recorder, *(site._replace(needs=(name,)) for site in sites))

    def sites(
        self,
        name: str,
        file: str,
        *heads: Site,
        releases: Releases | None = None,
        more: Iterable[Insertion] = (),
        needed: str = "",
    ) -> Recipe:
        """Return the recipe called `name` for the lines that call the recorder in a `file` of the package.

        `heads` are lines at the head of functions; those of functions that a release lacks are left out. `releases` are
        those that have the file (None: all of the stage). `more` are all other insertions, optional only if they say
        so. Of the heads, the function `needed` must exist ("": none): without it the file belongs to something else,
        such as an older engine.
        """
        calls = ((path, f"{self.AT_HEAD} = {self.recorder} and _rlpatch.{call}", why) for path, call, why in heads)
        insertions = (*(line(*call)._replace(optional=call[0] != needed) for call in calls), *more)
        beside = f"# What these lines call stands at the end of {self.package}/__init__.py."
        probe = Probe(summary=self.summary, beside=beside)
        return self._recipe(
            name, file, releases or self.releases, Text("the code to patch is in this file"), probe, insertions
        )

    def around(self, method: str, statement: str, recorder_call: str, why: str) -> Insertion:
        """Return lines in `method` that call the recorder before `statement`, and drop what it returned after it.

        `recorder_call` is the call, such as "phase('gather')": its span or range lasts as long as the statement.
        """
        where = Around(statement, f"del {self.AROUND}")
        return line(method, f"{self.AROUND} = {self.recorder} and _rlpatch.{recorder_call}", why, where)

    def _recipe(
        self, name: str, file: str, releases: Releases, shape: str, probe: Probe, insertions: tuple[Insertion, ...] = ()
    ) -> Recipe:
        """Return the recipe `name` of this stage for `file` of the package, for functions in any class or in none.

        `shape` describes the file's structure in words. `insertions` are lines at call sites, none for the recorder.
        """
        path = f"{self.package}/{file}"
        return Recipe(
            name=name,
            stage=self.STAGE,
            class_name="",
            method=insertions[0].method if insertions else "",
            insertions=insertions,
            structures=(Structure("", releases, path, (), shape),),
            probe=probe,
            windows=(WHOLE,),
            why=self.WHY,
            how=self.HOW,
            upstream=Text("{file}, from {release} on", file=path, release=releases[0]),
            needed_until=self.REMOVE_WHEN,
        )


def line(method: str, text: str, why: str, where: Anchor | None = None, parameters: tuple[str, ...] = ()) -> Insertion:
    """Return an insertion of the line `text` at `where` in the function `method` (None: at its head).

    `why` is the reason for users, `parameters` are those that the function must have. In a release without such a
    function the line is left out.
    """
    return Insertion(method, where=where or Head(), line=text, why=why, parameters=parameters, optional=True)
