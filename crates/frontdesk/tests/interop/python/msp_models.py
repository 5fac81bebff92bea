"""The generated models of muse-code-msp as strict validators.

The package publishes its models as typed dictionaries. Here they are read once more with what
pydantic needs (typing_extensions), strict and closed: a wrong type fails, and so does a member that
the model does not have.
"""

import sys
import types
from importlib.util import find_spec
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter


# The common part of all paged events; each is checked against its own model as well.
OPEN = {"UnframedViewNotificationParams"}


class Surface:
    """One surface: `stable` or `experimental`."""

    def __init__(self, experimental: bool) -> None:
        name = "muse_code_msp.experimental" if experimental else "muse_code_msp"
        source = Path(find_spec(name).origin).read_text()
        line = "from typing import Any, Final, Literal, TypedDict"
        assert line in source, "the models begin differently in this release"
        source = source.replace(
            line, "from typing import Any, Final, Literal\nfrom typing_extensions import TypedDict"
        )
        module = types.ModuleType(f"strict_{name.replace('.', '_')}")
        sys.modules[module.__name__] = module
        exec(compile(source, module.__name__, "exec"), module.__dict__)
        for value in vars(module).values():
            if isinstance(value, type) and hasattr(value, "__total__"):
                extra = "allow" if value.__name__ in OPEN else "forbid"
                value.__pydantic_config__ = ConfigDict(strict=True, extra=extra)
        self.module = module
        self.adapters: dict[str, TypeAdapter] = {}
        self.checked: dict[str, int] = {}

    def check(self, name: str, value: object) -> None:
        if name not in self.adapters:
            self.adapters[name] = TypeAdapter(getattr(self.module, name))
        self.adapters[name].validate_python(value)
        self.checked[name] = self.checked.get(name, 0) + 1

    def result(self, method: str, value: object) -> None:
        self.check(self.module.METHODS[method]["result"], value)

    def notification(self, frame: dict) -> None:
        self.check("Notification", {**frame, "jsonrpc": frame.get("jsonrpc", "2.0")})
        assert isinstance(frame["emittedAtMs"], int), frame
        self.event(frame["method"], frame.get("params"))

    def event(self, method: str, params: object) -> None:
        self.check(self.module.NOTIFICATIONS[method]["params"], params)

    def error(self, code: int, data: dict) -> None:
        self.check("ErrorData", data)
        known = [row for row in self.module.ERRORS if row["code"] == code]
        kinds = {kind for row in known for kind in (row["kind"], *row["overrideKinds"])}
        assert data["kind"] in kinds, (code, data, kinds)
