"""Verdicts of the check `gradients` on correct and on wrong backward passes: `python -m conformance.benchmarks.gradients.measure`.

False alarms: every correct variant of the detection benchmark that runs its batch at once, on `tiny`, from every loss. Detection:
the mistakes of `benchmarks.gradients.wrong`, each planted in a real module. `--alarms` counts only the false alarms, at depth
screen, which takes a tenth of the time.
"""

from functools import partial
from pathlib import Path

from conformance.benchmarks.detection.bert import DTYPES
from conformance.benchmarks.gradients.correct import CORRECT, GOLDEN
from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward
from conformance.benchmarks.harness import parser, publish
from conformance.benchmarks.scored import Part, Score, lines
from conformance.checks.backward_passes import gradients
from conformance.checks.check import Plan, Request
from conformance.checks.judgement import check_values
from conformance.judge import Depth
from conformance.results.result import Result

RESULTS = Path(__file__).with_name("RESULTS.md")
ALARMS = RESULTS.with_name("ALARMS.md")


def judged(candidate: object, dtype: str, depth: Depth = "full", golden: str = GOLDEN) -> Result:
    """Return the result of the check `gradients` on a golden.

    Raises:
        RuntimeError: the candidate was not judged.
    """
    result = check_values(Request.of(candidate, golden, dtype=dtype, plan=Plan(depth=depth)), gradients.function)
    if result.outcome not in ("pass", "fail"):
        raise RuntimeError(f"{result.outcome}: {result.reason}")
    return result


def origins(result: Result) -> dict[str, tuple[str, ...]]:
    """Return the activations that fail, each with the faults in its first explanation."""
    named = {}
    for verdict in result.failures:
        explanations = verdict.local.explanations if verdict.local else ()
        named[verdict.activation] = tuple(fault.name for fault in explanations[0].faults) if explanations else ()
    return named


def _judge(depth: Depth, name: str, dtype: str) -> list[Result]:
    return [judged(CORRECT[name], dtype, depth)]


def _score(name: str, dtype: str) -> Score:
    wrong = WRONG[name]
    where = origins(judged(WithWrongBackward(wrong), dtype, golden=wrong.golden))
    is_named = where == dict.fromkeys(wrong.at, (wrong.named,))
    return Score({"detected": bool(where), "placed": set(where) == set(wrong.at), "named": is_named}, str(where))


def part(depth: Depth) -> Part:
    """Return the correct backward passes and, at full depth, the wrong ones."""
    candidates = {name: candidate.variant.dtypes for name, candidate in CORRECT.items()}
    correct = f"Correct backward passes on `{GOLDEN}`, from every loss, at depth {depth}"
    if depth == "screen":
        return Part(correct, candidates, partial(_judge, depth))
    return Part(correct, candidates, partial(_judge, depth), "Wrong backward passes", list(WRONG), _score)


def main() -> None:
    """Print the tables; `--write` also saves them."""
    options = parser(__doc__, RESULTS)
    options.add_argument("--formats", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: all")
    options.add_argument("--alarms", action="store_true", help=f"correct ones alone, at depth screen; into {ALARMS.name}")
    chosen = options.parse_args()
    page = ALARMS if chosen.alarms else RESULTS
    depth: Depth = "screen" if chosen.alarms else "full"
    publish(page, "Backward passes", lines(part(depth), chosen.formats, chosen.jobs), write=chosen.write)


if __name__ == "__main__":
    main()
