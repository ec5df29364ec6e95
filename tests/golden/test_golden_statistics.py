"""The statistics reproduce golden numbers that were computed by other code (see each file).

Tolerance 1e-12 relative: the files agree with a second computation to about 5e-15. Bounds found by
bisection are compared to 1e-9 absolute, quadratures to 1e-8.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from instar_core.statistics import beta, betting, reports
from instar_core.statistics.elond import ELond, GammaName
from instar_core.statistics.eprocess import EProcess, bet_fractions, interval, log_mixture

DATA = Path(__file__).parent / "data"
REL = 1e-12


def load(name: str) -> Any:
    return json.loads((DATA / f"stats_{name}.json").read_text())


E_PROCESS = load("e_process")["cases"]
CAPITAL = load("capital")["cases"]
SEQUENCES = load("confidence_sequence")["cases"]


def x_of(d: list[float]) -> list[float]:
    return [(value + 1.0) / 2.0 for value in d]


def first_crossing(values: list[float], threshold: float) -> int | None:
    return next((i for i, v in enumerate(values, start=1) if v >= threshold), None)


@pytest.mark.parametrize("case", sorted(E_PROCESS))
@pytest.mark.parametrize("mu0", ["0", "-0.05", "0.02"])
def test_mixture_e_process_in_both_directions(case: str, mu0: str) -> None:
    golden = E_PROCESS[case]
    better = golden[f"null_E[d]<={mu0}"]
    worse = golden[f"null_E[d]>={mu0}"]
    up = EProcess(mu0=float(mu0))
    down = EProcess(mu0=float(mu0), direction="worse")
    logs, e_up, e_down, p = [], [], [], []
    for d in golden["d"]:
        logs.append(up.update(d))
        down.update(d)
        e_up.append(up.e_value)
        e_down.append(down.e_value)
        p.append(up.anytime_p)
    assert e_up == pytest.approx(better["mixture_G20"], rel=REL)
    assert logs == pytest.approx(better["log_mixture_G20"], rel=REL, abs=1e-13)
    assert p == pytest.approx(better["anytime_p"], rel=REL)
    assert e_down == pytest.approx(worse["mixture_G20"], rel=REL)
    for threshold, at in better["first_crossing"].items():
        assert first_crossing(e_up, float(threshold)) == at
    for threshold, at in worse["first_crossing"].items():
        assert first_crossing(e_down, float(threshold)) == at


@pytest.mark.parametrize("case", sorted(E_PROCESS))
def test_curtailment_bound(case: str) -> None:
    golden = E_PROCESS[case]["curtailment"]
    process = EProcess()
    best = []
    for d in E_PROCESS[case]["d"]:
        process.update(d)
        best.append(math.exp(process.best_attainable(golden["n_max"])))
    assert best == pytest.approx(golden["best_attainable_e_value_after_each_pair"], rel=1e-11)


@pytest.mark.parametrize("case", sorted(E_PROCESS))
@pytest.mark.parametrize("mu0", ["0", "-0.05", "0.02"])
def test_other_rules_on_differences(case: str, mu0: str) -> None:
    golden = E_PROCESS[case]
    expected = golden[f"null_E[d]<={mu0}"]
    x, m = x_of(golden["d"]), (1.0 + float(mu0)) / 2.0
    for f in (0.1, 0.25, 0.5):
        bets = [2.0 * f / (1.0 + float(mu0))] * len(x)
        assert betting.capital(x, m, bets) == pytest.approx(expected[f"fixed_f{f}"], rel=REL)
    agrapa = [min(max(0.0, bet), 0.5 / m) for bet in betting.agrapa_bets(x, m)]
    assert betting.capital(x, m, agrapa) == pytest.approx(
        expected["agrapa_onesided_c0.5"], rel=1e-11
    )
    prpl = [min(bet, 0.5 / m) for bet in betting.prpl_eb_bets(x, 0.05)]
    assert betting.capital(x, m, prpl) == pytest.approx(
        expected["prpl_eb_alpha0.05_c0.5"], rel=1e-11
    )


def _confseq_variances(x: list[float], m: float) -> list[float]:
    variances, total = [], 0.0
    for t, value in enumerate(x, start=1):
        variances.append(0.125 if t == 1 else total / (t + 1))
        total += (value - m) ** 2
    return variances


@pytest.mark.parametrize("case", sorted(CAPITAL))
@pytest.mark.parametrize("null", ["0.3", "0.5", "0.7"])
def test_capital_of_every_rule(case: str, null: str) -> None:
    golden, m = CAPITAL[case], float(null)
    x = golden["x"]
    signed_agrapa = [min(max(bet, -0.5 / (1 - m)), 0.5 / m) for bet in betting.agrapa_bets(x, m)]
    _, plug_in_variance = betting.plug_in(x)
    up, down = betting.hedged_capital(x, m, alpha=0.05)
    found: dict[str, list[float]] = {
        "agrapa_bets_untruncated": betting.agrapa_bets(x, m),
        "agrapa_signed_c0.5": betting.capital(x, m, signed_agrapa),
        "agrapa_onesided_c0.5": betting.capital(x, m, [max(0.0, b) for b in signed_agrapa]),
        "prpl_eb_alpha0.05_c0.5": betting.capital(
            x, m, [min(b, 0.5 / m) for b in betting.prpl_eb_bets(x, 0.05)]
        ),
        "lbow_signed_confseq_variance_c1": betting.capital(
            x, m, betting.lbow_bets(x, m, _confseq_variances(x, m))
        ),
        "lbow_onesided_plugin_variance_c0.5": betting.capital(
            x, m, [min(max(0.0, b), 0.5 / m) for b in betting.lbow_bets(x, m, plug_in_variance)]
        ),
        "hedged_positive_part": up,
        "hedged_negative_part": down,
        "hedged_max_theta0.5_c0.5": [max(0.5 * a, 0.5 * b) for a, b in zip(up, down, strict=True)],
        "hedged_sum_theta0.5_c0.5": [0.5 * a + 0.5 * b for a, b in zip(up, down, strict=True)],
        "dkelly_positive_D10": betting.dkelly_capital(x, m, 10),
    }
    for name, expected in golden["null_mean_m"][null].items():
        if name.startswith("fixed_lambda_"):
            bets = [float(name.removeprefix("fixed_lambda_"))] * len(x)
            found[name] = betting.capital(x, m, bets)
        assert found[name] == pytest.approx(expected, rel=1e-11, abs=1e-15), name
    assert betting.prpl_eb_bets(x, 0.05) == pytest.approx(
        golden["prpl_eb_bets_alpha0.05_untruncated"], rel=REL
    )


@pytest.mark.parametrize("case", sorted(SEQUENCES))
def test_the_gates_own_interval(case: str) -> None:
    golden = SEQUENCES[case]
    for i, t in enumerate(golden["mixture_G20"]["t"]):
        process = EProcess()
        for d in golden["d"][:t]:
            process.update(d)
        low, high = interval(process.counts, 0.95)
        assert low == pytest.approx(golden["mixture_G20"]["lower_d"][i], abs=1e-9)
        assert high == pytest.approx(golden["mixture_G20"]["upper_d"][i], abs=1e-9)


@pytest.mark.parametrize("case", sorted(SEQUENCES))
def test_other_confidence_sequences(case: str) -> None:
    golden = SEQUENCES[case]
    x = x_of(golden["d"])
    for t in range(1, len(x) + 1):
        low, high = betting.hedged_interval(x[:t])
        assert low == pytest.approx(golden["hedged"]["lower_x"][t - 1], abs=1e-9)
        assert high == pytest.approx(golden["hedged"]["upper_x"][t - 1], abs=1e-9)
        for name, found in (
            ("prpl_eb_paper", betting.prpl_eb_interval(x[:t])),
            ("prpl_hoeffding", betting.prpl_hoeffding_interval(x[:t])),
        ):
            # The files keep bounds beyond [0, 1]; ours say nothing that is impossible.
            assert found[0] == pytest.approx(max(0.0, golden[name]["lower_x"][t - 1]), abs=1e-12)
            assert found[1] == pytest.approx(min(1.0, golden[name]["upper_x"][t - 1]), abs=1e-12)


GAMMAS: dict[str, GammaName] = {
    "1/(t(t+1))": "quadratic",
    "flat50": "flat",
    "half-flat-half-quadratic H=50": "half-flat-half-quadratic",
    "lond": "lond",
    "t^-1.6": "power",
}


@pytest.mark.parametrize("index", range(30))
def test_elond_levels_and_decisions(index: int) -> None:
    case = load("elond")["cases"][index]
    state = ELond(alpha=case["alpha"], horizon=50, gamma=GAMMAS[case["gamma"]])
    for t, e_value in enumerate(case["e_values"]):
        assert state.next_level == pytest.approx(case["alpha_t"][t], rel=REL)
        accepted, state = state.decide(e_value)
        assert accepted is case["reject"][t], (t, e_value)
        assert state.accepted == case["rejections_so_far"][t]


def test_sign_test_e_values_and_the_limit_of_the_mixture() -> None:
    for case in load("sign_test")["cases"]:
        arguments = (case["wins"], case["losses"])
        for one_sided, name in ((True, "e_one_sided"), (False, "e_two_sided")):
            found = beta.sign_test_e_value(
                *arguments, a=case["a"], b=case["b"], one_sided=one_sided
            )
            assert found == pytest.approx(case[name], rel=1e-11), case
        if case["prior"] == "uniform":
            many = [
                case["wins"] * math.log1p(f) + case["losses"] * math.log1p(-f)
                for f in bet_fractions(4000)
            ]
            assert math.exp(log_mixture(many)) == pytest.approx(case["e_one_sided"], rel=1e-4)


def test_pass_at_k_and_pass_hat_k() -> None:
    for n, c, k, at, hat in load("pass_at_k")["rows"]:
        assert reports.pass_at_k(n, c, k) == pytest.approx(at, rel=REL, abs=1e-15)
        assert reports.pass_hat_k(n, c, k) == pytest.approx(hat, rel=REL, abs=1e-15)


def test_brier_scores() -> None:
    golden = load("brier")
    for case in golden["binary"]:
        parts = reports.brier(case["p"], case["y"])
        assert parts.score == pytest.approx(case["brier"], rel=REL)
        assert parts.base_rate == pytest.approx(case["base_rate"], rel=REL)
        assert parts.reference == pytest.approx(case["reference_brier"], rel=REL)
        assert parts.skill == pytest.approx(case["skill"], rel=REL, abs=1e-15)
        for name in ("reliability", "resolution", "uncertainty"):
            assert getattr(parts, name) == pytest.approx(case[name], rel=REL, abs=1e-15)
    multi = golden["multiclass"]
    assert reports.brier_multiclass(multi["p"], multi["y"]) == pytest.approx(
        multi["brier_multiclass"], rel=REL
    )


def test_beta_posteriors() -> None:
    golden = load("beta_posterior")
    for case in golden["pairs"]:
        (a1, b1), (a2, b2) = case["posterior1"], case["posterior2"]
        assert beta.probability_better(a1, b1, a2, b2) == pytest.approx(
            case["P_arm1_better"], rel=1e-10
        )
        for a, b, expected in ((a1, b1, case["ci95_1"]), (a2, b2, case["ci95_2"])):
            found = [beta.beta_quantile(p, a, b) for p in (0.025, 0.975)]
            assert found == pytest.approx(expected, rel=1e-9)
    for case in golden["thompson"]:
        arms = [(1 + s, 1 + n - s) for s, n in case["successes_trials"]]
        assert beta.probability_best(arms) == pytest.approx(case["P_best"], abs=1e-8)
