"""Defines cases, small JSON values that determine inputs bit by bit, and the recipes that fill them."""

from verify.cases.case import Case, case_of, inputs_of, problem_of, upstream_of

__all__ = ["Case", "case_of", "inputs_of", "problem_of", "upstream_of"]
