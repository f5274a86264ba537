"""Lists all laws in the order in which they are tried. The laws that break most often and explain most come first."""

from importlib import import_module

from verify.laws.law import Law
from verify.laws.profiles import named

_MODULES = (
    "determinism",  # first: if a kernel is not deterministic, no other verdict can be trusted
    *("accuracy", "stochastic", "distribution", "special", "gradcheck", "layouts", "memory", "batch", "bits"),
    *("roundings", "attention", "sequences", "shapes", "configuration", "contract", "composition", "device"),
)
ALL: tuple[Law, ...] = tuple(law for name in _MODULES for law in import_module(f"verify.laws.{name}").LAWS)
_BY_NAME = {law.name: law for law in ALL}


def get(name: str) -> Law:
    """Returns the law with a name."""
    return _BY_NAME[named(name)]
