# Everything here works as the only command on a fresh machine with Python >= 3.11.
#   make verify   verify the shipped kernels, print the verdict, write one HTML report
#   make test     lint, types, unit tests and property suites with the ci profile
#   make test-all and make test-machines    the slow tests, and PyTorch's numerics in other forms; each night in CI
#   make help     all targets

# python3, or /usr/bin/python3 of the same version if that is faster. Asked only when an environment is made.
PYTHON ?= $(shell python3 .ci/fastest.py || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OUT    := build/verify
PUBLISHED := reports/published/sm_90
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
# glibc gives no memory back, so that a tensor of more than 128 KiB does not begin in new pages each time.
MALLOC := MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824

.DEFAULT_GOAL := help
.PHONY: help verify test test-all test-machines lint types unit docs publish site dist clean

# Re-made when the pins change. The stamp is written last, so an interrupted install starts again.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "make: python3 cannot create a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
	@echo "make: torch is compiled to bytecode while the rest is installed"; \
	$(BIN)/python -m compileall -q $(VENV)/lib >/dev/null 2>&1 & \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; code=$$?; wait; \
	$(BIN)/python -m compileall -q -j2 verify kernels mutants benchmarks >/dev/null 2>&1; exit $$code
	@touch $@

help:
	@echo "make verify    measure the shipped kernels; verdict, record and HTML report in $(OUT)"
	@echo "make test      lint, types, unit tests and property suites"
	@echo "make lint | types | unit    one of the three"
	@echo "make test-all  the same, with the tests that take minutes"
	@echo "make test-machines    what calls PyTorch's numerics, in the forms that they have on other processors"
	@echo "make docs      write the generated pages and the sections of figures"
	@echo "make publish   make RUN=build/nightly/DATE/run.json the published night of sm_90"
	@echo "make site      build docs/ as a site with search in build/site"
	@echo "make dist      wheels and source archive in dist/, tried with each Python from 3.11 to 3.14 that is here"
	@echo "make clean     remove what the targets left behind, except the environment"
	@echo "With PYTHON=python3.12 another interpreter makes the environment in $(VENV)."

# In bfloat16 and float32: float16 takes the ways of bfloat16, and float64 is judged in exact arithmetic, so that both would
# double the time. tests/kernels tries each, and nights measure all.
# `verify run` exits 1 when a kernel is wrong, 3 when something could not be measured: both fail the target.
# Each kernel has a process that imports kernels/, which container images tell Python to compile for each.
verify: $(STAMP)
	@PYTHONDONTWRITEBYTECODE= $(MALLOC) $(BIN)/verify run --dtype bfloat16 --dtype float32 \
	  --json $(OUT)/run.json --html $(OUT)/report.html; code=$$?; \
	test ! -f $(OUT)/report.html || echo "report: $(abspath $(OUT)/report.html)"; exit $$code

# Types beside the tests: alone they keep one core for 10 s on a machine that has no cache of them.
test: lint
	@$(MAKE) --no-print-directory -j2 types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# One thread per worker: the workers are the parallelism, and results must not depend on it. Each worker begins with
# tests that lie side by side, which share what their module measures once, and takes over from another at the end.
# One worker more than cores took 5% longer: its turns cost more than it fills while others wait for processes.
# Dozens of processes import verify, which container images tell Python to compile for each (4 s for pytest's).
TESTED := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(MALLOC)
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --hypothesis-profile=ci
unit: $(STAMP)
	$(TESTED) $(PYTEST) -m "not slow"

test-all: lint types
	$(TESTED) $(PYTEST)

# MKL, ATen and oneDNN choose their code by the processor. Each form has other last bits; no test may depend on which.
test-machines: $(STAMP)
	@$(TESTED) $(BIN)/python tests/processors.py --each $(PYTEST) -m "not slow"

# docs/findings.md and docs/speed.md are written from answers and records that a machine has to measure first.
docs: $(STAMP)
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_laws.py
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/generate_figures.py

# The bounds come first: `verify bounds propose RUN`, then `verify gate RUN`. The record lies beside its page.
publish: $(STAMP)
	@test -f "$(RUN)" || { echo "make publish needs RUN=build/nightly/DATE/run.json; received '$(RUN)'" >&2; exit 2; }
	gzip -9 -n -c "$(RUN)" > $(PUBLISHED)/run.json.gz
	$(BIN)/verify report $(PUBLISHED)/run.json.gz --html $(PUBLISHED)/report.html \
	  --markdown $(PUBLISHED)/report.md --bounds reports/bounds
	$(BIN)/python docs/generate_speed.py
	@$(MAKE) --no-print-directory docs

# In an environment of its own: nothing of the site is needed elsewhere.
site:
	@test -x build/site-env/bin/python || $(PYTHON) -m venv build/site-env
	@build/site-env/bin/python -m pip install --quiet --disable-pip-version-check mkdocs-material==9.8.2
	@NO_MKDOCS_2_WARNING=1 build/site-env/bin/mkdocs build --strict --quiet
	@echo "site: $(abspath build/site/index.html)"
	@echo "with its search: python3 -m http.server --directory build/site"

# The wheels are tried as somebody installs them, by each Python that is here (EACH=python3.14: by that one), outside of
# this folder, since Python would import verify/ from here: that of the kernels with torch alone, by the first lines of
# its README (Triton's interpreter needs numpy), then verify's. Its types have to be found, also in an editable install.
EACH ?= $(shell for each in 11 12 13 14; do \
  python3.$$each -c 'import venv' 2>/dev/null && command -v python3.$$each || true; done)
TYPED := -m mypy --strict --config-file= -c "import verify; verify.assert_close(1, like=abs, inputs=())"
README := import pathlib, re; exec(re.search("`{3}python\n(.*?)`{3}", pathlib.Path("$(CURDIR)/kernels/package/README.md").read_text(), re.S)[1])
dist: $(STAMP)
	@rm -rf dist build/lib build/try
	@$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')" >/dev/null
	@cd kernels/package && "$(CURDIR)/$(BIN)/python" -c "from setuptools import build_meta as b; b.build_wheel('../../dist')" >/dev/null; \
	  code=$$?; rm -rf build *.egg-info; exit $$code
	@for python in $(or $(EACH),$(PYTHON)); do \
	  rm -rf build/try && $$python -m venv build/try && cd build/try && bin/python --version && \
	  pip="bin/python -m pip install --quiet --disable-pip-version-check" && \
	  $$pip torch==2.13.0 ../../dist/verify_kernels_triton-*.whl && bin/python -c "import verify_kernels_triton" && \
	  $$pip numpy && TRITON_INTERPRET=1 bin/python -c '$(README)' && \
	  $$pip mypy==2.4.1 ../../dist/verify_kernels-*.whl && \
	  bin/verify run $(abspath examples/structured.py)::there_and_back --dtype bfloat16 && bin/python $(TYPED) && \
	  $$pip --no-deps --editable ../.. && bin/python $(TYPED) && cd ../.. || exit 1; done
	@ls -l dist

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
