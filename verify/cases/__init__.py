"""Cases: small JSON values that determine inputs to the bit, and the recipes that fill them."""

from verify.cases.case import Case, inputs_of, problem_of, upstream_of

__all__ = ["Case", "inputs_of", "problem_of", "upstream_of"]
