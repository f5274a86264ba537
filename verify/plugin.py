"""The pytest plugin: a fixture, a marker and Hypothesis profiles.

pytest loads this plugin in every project of an environment that has verify. It does nothing until a project uses it:

* the fixture `verify_close` is `verify.assert_close`; the marker `verify` has arguments for it;
* `--verify-profile=NAME` registers the profiles verify-quick, verify-ci, verify-nightly and verify-exhaustive, and
  selects verify-NAME; `--hypothesis-profile=verify-NAME` does the same.

It imports Hypothesis only for the profiles, and torch only for the fixture.

* verify-quick: a few cases, for quick answers while editing;
* verify-ci: the same cases every time, no deadline;
* verify-nightly: many cases, seeded by the date, so that two branches tested on one day get the same cases;
* verify-exhaustive: thousands of cases, and every 16-bit number for ops of one number.
"""

from collections.abc import Callable
from typing import Any

import pytest

from verify.laws.profiles import EXAMPLES, PREFIX


def register_profiles() -> None:
    """Registers the profiles in Hypothesis, for a conftest.py that loads or changes one of them.

    A profile that the project has already registered is not changed.
    """
    from hypothesis import HealthCheck, settings
    from hypothesis.errors import InvalidArgument

    for name, examples in EXAMPLES.items():
        try:
            settings.get_profile(PREFIX + name)
        except InvalidArgument:
            settings.register_profile(
                PREFIX + name,
                max_examples=examples,
                deadline=None,
                derandomize=name == "ci",
                suppress_health_check=list(HealthCheck),
                print_blob=name in ("nightly", "exhaustive"),
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --verify-profile."""
    known = ", ".join(EXAMPLES)
    parser.getgroup("verify").addoption(
        "--verify-profile", choices=list(EXAMPLES), metavar="NAME", help=f"how many cases the laws try: {known}"
    )


@pytest.hookimpl(tryfirst=True)  # Hypothesis loads the profile in the same hook
def pytest_configure(config: pytest.Config) -> None:
    """Adds the marker. Registers the profiles if the command line names one of them."""
    config.addinivalue_line("markers", "verify(like=FUNCTION, ...): arguments of the fixture verify_close")
    if config.option.verify_profile:
        config.option.hypothesis_profile = PREFIX + config.option.verify_profile
    if (getattr(config.option, "hypothesis_profile", None) or "").startswith(PREFIX):
        register_profiles()


@pytest.fixture
def verify_close(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compares results with the exact answer, as `verify.assert_close` does, without a tolerance.

        @pytest.mark.verify(like=torch.nn.functional.gelu)
        def test_gelu(verify_close):
            x = torch.randn(64)
            verify_close(my_gelu(x), inputs=(x,))

    The marker holds arguments that all calls share.
    """
    import verify

    shared: dict[str, Any] = {}
    for marker in reversed([*request.node.iter_markers("verify")]):  # that of the test after that of its module
        shared |= marker.kwargs

    def check(actual: Any, **given: Any) -> None:
        __tracebackhide__ = True
        verify.assert_close(actual, **{**shared, **given})

    return check
