"""Writes docs/findings.md from docs/findings.toml (questions and texts) and docs/findings.json (answers).

    python docs/generate_findings.py                       write docs/findings.md
    python docs/generate_findings.py --check               exit 1 if it differs
    python docs/generate_findings.py --measure PATH        measure every kernel on this machine, write the answers
    python docs/generate_findings.py --merge PATH          add such answers to findings.json, and write the page
    python docs/generate_findings.py --scripts FOLDER... --to docs/findings/answers.json

`--scripts FOLDER...` runs the script of each page in docs/findings/ on one GPU. The folders have the packages, or the
files of their kernels (benchmarks/kernel_files.py). It needs torch and triton only.

`--measure PATH --only ID ...` measures some findings. Merged answers are added to those of the same environment, and
replace those of another environment of the same backend.

The page shows answers of a GPU, of the interpreter and of a CPU. It omits a kernel whose package is not installed, or
that this backend does not run (`backend = "cuda"`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
TEXT, ANSWERS, PAGE = HERE / "findings.toml", HERE / "findings.json", HERE / "findings.md"
REPORTS, FOUND = HERE / "findings", HERE / "findings" / "answers.json"
PACKAGES = (
    "triton",
    "liger-kernel",
    "fla-core",
    "conch-triton-kernels",
    "flag_gems",
    "cut-cross-entropy",
    "mlstm_kernels",
    "bitsandbytes",
)
HEAD = """# Findings

Errors that `verify` found in PyTorch and other packages. Each entry has the `verify replay` command that shows it.
[Reports for trackers](#reports-for-trackers) show 17 more without `verify`.

An error is in ULP of the output format at the exact value. 255 in bfloat16, or 1.7e+07 in float32, means that no digit
is right. "s" marks an error in ULP of the magnitude of the summed terms. "interpreter" is a CPU, with Triton kernels
through the faithful interpreter. An entry without "intended?" has no known report. Most of these inputs are rare. A
listed package was examined closely; it is not worse than others.
"""


def findings() -> list[dict[str, Any]]:
    """Returns the questions and texts."""
    return tomllib.loads(TEXT.read_text(encoding="utf-8"))["finding"]


# -- measuring ------------------------------------------------------------------------------------------


def measure(backend: Any, only: list[str] | None = None) -> dict[str, Any]:
    """Returns the answers of this backend to every question, or only to those with these ids."""
    asked = [finding for finding in findings() if only is None or finding["id"] in only]
    if unknown := set(only or ()) - {finding["id"] for finding in asked}:
        raise SystemExit(f"{TEXT.name} has no finding {', '.join(sorted(unknown))}; its ids are the `id` of each entry")
    answers = {}
    for finding in asked:
        answer = ask(finding, backend)
        if answer is not None:
            answers[finding["id"]] = answer
    return {"environment": environment(backend), "answers": answers}


def environment(backend: Any) -> dict[str, str]:
    """Returns the versions and the device that the answers depend on."""
    import torch

    where = (
        torch.cuda.get_device_name() if backend.name == "cuda" else f"CPU, {torch.backends.cpu.get_cpu_capability()}"
    )
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "backend": backend.name,
        "where": where,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version for name, version in versions.items() if version},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def ask(finding: dict[str, Any], backend: Any) -> dict[str, Any] | None:
    """Returns the answer to one question; None if the package is missing or the backend cannot run the kernel."""
    from verify import backends
    from verify.cases import Case
    from verify.declare.discovery import load
    from verify.declare.target import Target
    from verify.errors import KernelError
    from verify.laws import engine, registry
    from verify.measure.call import run_kernel

    kernel = load(Target.parse(finding["target"]))[0]
    asked = finding.get("backend", backend.name)
    if kernel.lacking or backend.name != asked or not backends.runs_on(kernel.backends, backend.name):
        return None
    case = Case.from_json(json.dumps(finding["case"]))
    if finding.get("contract"):
        try:
            run_kernel(kernel, case, backend.device)
        except KernelError as error:
            return {"broken": True, "message": str(error)}
        return {"broken": False, "message": ""}
    if "law" in finding:
        found = engine.replay_law(registry.get(finding["law"]), kernel, case, backend, finding["target"])
        return {"broken": found.status == "broken", "message": found.message, "facts": found.facts}
    return _judged(kernel, case, finding, backend)


def _judged(kernel: Any, case: Any, finding: dict[str, Any], backend: Any) -> dict[str, Any]:
    """The worst element of one result of one case. `special`: among infinite and NaN inputs, else among all others."""
    import msgspec

    from verify.cases import problem_of
    from verify.cases.classes import NONFINITE, segments_of
    from verify.measure.call import run_kernel
    from verify.measure.element import worst_element
    from verify.measure.judge import JudgedBy, judge_by
    from verify.measure.tally import Tally
    from verify.records.record import Origin, replay_command, value_of
    from verify.truth import formats
    from verify.truth.fast import evaluate

    result, op = finding["result"], kernel.op
    measured = run_kernel(kernel, case, backend.device)
    got = measured.results[result]
    fmt = formats.of(got.dtype)
    problem = problem_of(op, case, measured.inputs, measured.upstream, (result,))
    truth = evaluate(op, problem, {result: fmt})[result]
    segments, regimes = segments_of(op, case, problem, result, tuple(got.shape))
    by = JudgedBy(op, problem, result, truth, fmt, kernel.policy)
    outcome = judge_by(by, got, segments=segments, n_segments=len(regimes))
    wanted = [
        part
        for regime, part in zip(regimes, outcome.tallies, strict=True)
        if (regime.name == NONFINITE) == finding.get("special", False)
    ]
    total = Tally()
    for part in wanted:
        total = total.merge(part)
    leader = total.leaders[0]
    index = leader.place
    scaled = value_of(leader.upper) if op.gate == "scaled" else None
    origin = Origin(finding["target"], case.to_json(), result, index)
    worst = worst_element(op, problem, got, outcome.exact[index], origin, scaled)
    return {
        "gate": op.gate,
        "figures": msgspec.structs.asdict(total.figures()),
        "worst": {name: value for name, value in msgspec.structs.asdict(worst).items() if name != "origin"}
        | {"replay": replay_command(worst.origin)},
        "index": index,
    }


def holds(finding: dict[str, Any], answer: dict[str, Any]) -> bool:
    """Whether an answer still shows what the finding says: a broken law or contract, or more than one ULP."""
    if "figures" not in answer:
        return bool(answer["broken"])
    name = "scaled_max" if answer["gate"] == "scaled" else "max_ulp"
    # not (x <= bound): a NaN is a finding
    return not float(answer["figures"][name]) <= 1.0


# -- reports for trackers -------------------------------------------------------------------------------


def script(report: Path) -> str:
    """Returns the script of a page of docs/findings/. Its last line fails while the fault is there."""
    [text] = re.findall(r"```python\n(.*?)```", report.read_text(encoding="utf-8"), re.DOTALL)
    return str(text)


def run_scripts(folders: list[str]) -> dict[str, Any]:
    """Runs each script in a process of its own, several at once. Returns what each printed, and if the fault is there.

    An answer of None has no verdict: the script ended with another error, which is in `error`.
    """
    import torch
    import triton

    path = os.pathsep.join(str(Path(each).resolve()) for each in folders)

    def answered(report: Path) -> dict[str, Any]:
        command = [sys.executable, "-c", script(report)]
        try:
            done = subprocess.run(
                command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=False
            )
        except subprocess.TimeoutExpired:
            return {"there": None, "printed": "", "error": "it took longer than 300 s"}
        last = ([""] + done.stderr.strip().splitlines())[-1]
        printed = ([""] + done.stdout.strip().splitlines())[-1]
        broken = True if last == "AssertionError" else None  # an assertion of the package has a message
        return {"there": broken if done.returncode else False, "printed": printed, "error": last}

    reports = sorted(REPORTS.glob("*.md"))
    with ThreadPoolExecutor(8) as several:
        found = {report.stem: answer for report, answer in zip(reports, several.map(answered, reports), strict=True)}
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    return {"where": f"{where}, torch {torch.__version__}, triton {triton.__version__}", "found": found}


def reports_table() -> list[str]:
    """Returns the section that lists the pages of docs/findings/, with what their scripts printed."""
    answers = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {"where": "", "found": {}}
    lines = [
        "",
        "## Reports for trackers",
        "",
        "Each page has a script of at most ten lines, the cause and a suggested change.",
    ]
    if answers["where"]:
        lines += ["", f"All scripts ran on one {answers['where']}."]
    lines += ["", "| report | of | fault there | the script prints |", "|---|---|---|---|"]
    for report in sorted(REPORTS.glob("*.md")):
        text = report.read_text(encoding="utf-8")
        package = re.findall(r"^`(.+?)`\. The script", text, re.MULTILINE)[0]
        answer = answers["found"].get(report.stem, {"there": None, "printed": ""})
        there = {True: "yes", False: "no", None: "-"}[answer["there"]]
        lines.append(
            f"| [{text[2:].splitlines()[0]}](findings/{report.name}) | {package} | {there} | {answer['printed']} |"
        )
    return lines


# -- the page -------------------------------------------------------------------------------------------


def page() -> str:
    """Returns the whole document."""
    places = json.loads(ANSWERS.read_text(encoding="utf-8"))
    parts = [HEAD, "| answers from | versions |", "|---|---|"]
    parts += [_place_row(place["environment"]) for _, place in sorted(places.items())]
    about = ""
    for finding in findings():
        if not any(finding["id"] in place["answers"] for place in places.values()):
            continue  # has no answer yet, for example of a GPU
        if finding["about"] != about:
            about = finding["about"]
            parts += ["", f"## {about}"]
        parts += _section(finding, places)
    parts += reports_table()
    return "\n".join(parts) + "\n"


def _place_row(environment: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {environment[name]}" for name in ("torch", *PACKAGES) if name in environment)
    return f"| {environment['backend']}: {environment['where']} | {versions} |"


def _section(finding: dict[str, Any], places: dict[str, Any]) -> list[str]:
    answers = {name: place["answers"].get(finding["id"]) for name, place in sorted(places.items())}
    threads = ", ".join(f"[{_short(url)}]({url})" for url in finding["threads"])
    facts = {"kernel": f"`{finding['target']}`, {_subject(finding)}", "inputs": finding["what"]}
    facts |= {"cause": finding["cause"], "intended?": finding["design"], "threads": threads}
    rows = [f"| {name} | {text.replace('|', '&#124;')} |" for name, text in facts.items() if text]
    lines = ["", f"### {finding['title']}", "", "| fact | text |", "|---|---|", *rows, ""]
    if "result" in finding:
        lines += [
            "| on | largest error | NaN, ∞ | misrounded | worst input | got | exact |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [_judged_row(name, answer) for name, answer in answers.items() if answer]
    else:
        lines += ["| on | what happened |", "|---|---|"]
        lines += [f"| {name} | {_said(answer)} |" for name, answer in answers.items() if answer]
    lines += ["", "```sh", command(finding, answers), "```", ""]
    lines += ["```python", finding["snippet"].strip(), "```", ""] if "snippet" in finding else []
    return lines[:-1] if not lines[-1] else lines


def _subject(finding: dict[str, Any]) -> str:
    dtype = finding["case"]["dtype"]
    if "law" in finding:
        return f"law of {finding['law']}, {dtype}"
    return f"{finding['result']} in {dtype}" if "result" in finding else dtype


def _judged_row(name: str, answer: dict[str, Any]) -> str:
    from verify.report import words

    figures, worst = answer["figures"], answer["worst"]
    inputs = ", ".join(f"{key} = {value}" for key, value in worst["inputs"].items())
    cells = [
        name,
        f"{error_of(answer)} of {figures['n']:,}",
        f"{figures['nonfinite']:,}",
        words.share(figures["misrounded"], figures["n"]),
        inputs,
        f"{worst['got']} ({worst['got_hex']})",
        _exact(worst["truth"]),
    ]
    return "| " + " | ".join(cells) + " |"


def error_of(answer: dict[str, Any]) -> str:
    """Returns the largest error as the table shows it; "s" marks ULP of the magnitude of the terms."""
    from verify.report import words

    scaled = answer["gate"] == "scaled"
    return words.ulp(answer["figures"]["scaled_max" if scaled else "max_ulp"]) + (" s" if scaled else "")


def _exact(truth: str) -> str:
    """Returns the exact value, unless its exponent is longer than a table cell."""
    exponent = truth.partition("e")[2]
    if len(exponent) <= 6:
        return truth
    return "0, below every format" if exponent.startswith("-") else "beyond every format"


def _said(answer: dict[str, Any]) -> str:
    if not answer["broken"]:
        return "does not happen here"
    facts = "; ".join(f"{key}: {value}" for key, value in answer.get("facts", {}).items())
    return answer["message"] + (f" ({facts})" if facts else "")


def command(finding: dict[str, Any], answers: dict[str, Any]) -> str:
    """Returns the command that shows it again."""
    if finding.get("contract"):
        return f"verify run {finding['target']}"
    if "law" in finding:
        case = json.dumps(finding["case"], separators=(",", ":"))
        return f"verify replay {finding['target']} {shlex.quote(case)} --law {shlex.quote(finding['law'])}"
    chosen = answers.get("interpreter") or next(answer for answer in answers.values() if answer)
    return str(chosen["worst"]["replay"])


def _short(url: str) -> str:
    owner, name, _, number = url.removeprefix("https://github.com/").split("/")
    return f"{name} #{number}" if owner != name else f"{owner} #{number}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="docs/findings.md: measure, merge, write, check.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", metavar="PATH")
    parser.add_argument("--only", metavar="ID", nargs="+", help="with --measure: these findings")
    parser.add_argument("--merge", metavar="PATH")
    parser.add_argument("--scripts", metavar="FOLDER", nargs="+")
    parser.add_argument("--to", metavar="PATH", default=str(FOUND), help="with --scripts: where the answers go")
    parser.add_argument("--backend", choices=("cuda", "interpreter", "cpu"))
    options = parser.parse_args(arguments)
    if options.measure:
        from verify import backends

        backend = backends.select(options.backend)
        backends.activate(backend)
        Path(options.measure).write_text(json.dumps(measure(backend, options.only), indent=1) + "\n", encoding="utf-8")
        return 0
    if options.scripts:
        answers = run_scripts(options.scripts)
        Path(options.to).write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(answers, indent=1))
        return 0
    if options.merge:
        places = json.loads(ANSWERS.read_text(encoding="utf-8")) if ANSWERS.exists() else {}
        new = json.loads(Path(options.merge).read_text(encoding="utf-8"))
        known = places.get(new["environment"]["backend"])
        if known and known["environment"] == new["environment"]:
            new["answers"] = known["answers"] | new["answers"]
        places[new["environment"]["backend"]] = new
        ANSWERS.write_text(json.dumps(places, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if options.check:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
