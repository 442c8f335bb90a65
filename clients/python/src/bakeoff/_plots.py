"""The charts of an experiment, by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import BakeoffError

if TYPE_CHECKING:
    from ._experiments import Experiment


def draw(experiment: Experiment, kind: str, **options: Any) -> Any:
    """Draw one of the charts; return matplotlib's axes."""
    charts = {"cost": _cost, "loss": _loss, "speed": _speed, "race": _race}
    if kind not in charts:
        raise ValueError(f"no chart is called {kind!r}; there are {', '.join(charts)}")
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise BakeoffError("Charts need matplotlib: pip install 'bakeoff[plot]'") from error
    axes = options.pop("ax", None) or plt.subplots(figsize=(8, 4.5))[1]
    charts[kind](experiment, axes, **options)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _colours(experiment: Experiment) -> dict[str, str]:
    """Give each candidate one colour, the same in every chart of the experiment."""
    names = dict.fromkeys(row["candidate"] for row in experiment.comparison())
    return {name: f"C{at % 10}" for at, name in enumerate(names)}


def _names(experiment: Experiment) -> dict[str, str]:
    """Name each trial by its candidate, and by what tells it from others of that candidate."""
    names: dict[str, str] = {}
    for row in experiment.comparison():
        name = row["candidate"] + (" (spot)" if row["purchase_option"] == "spot" else "")
        repeat = sum(other.split(" #")[0] == name for other in names.values())
        names[row["trial_id"]] = f"{name} #{repeat + 1}" if repeat else name
    return names


def _cost(experiment: Experiment, axes: Any) -> None:
    """Draw dollars against hours of the full run, with their 90 % intervals."""
    colours = _colours(experiment)
    for choice in experiment.recommendation().ranked:
        hours, dollars = choice["projected_hours"], choice["projected_cost_usd"]
        odds = choice.get("odds")
        bars: dict[str, Any] = {}
        if odds:
            bars["xerr"] = _around(hours, odds["hours_low"], odds["hours_high"])
            bars["yerr"] = _around(dollars, odds["cost_usd_low"], odds["cost_usd_high"])
        is_spot = choice["purchase_option"] == "spot"
        label = choice["candidate"] + (" (spot)" if is_spot else "")
        colour = colours[choice["candidate"]]
        face = "white" if is_spot else colour
        axes.errorbar([hours], [dollars], fmt="o", capsize=3, label=label, color=colour, mfc=face, **bars)
    axes.set(xlabel="hours of the full run", ylabel="dollars of the full run")
    axes.set_title(f"{experiment.name}: projected from what was measured, 90 % intervals")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)


def _around(value: float, low: float, high: float) -> list[list[float]]:
    return [[max(0.0, value - low)], [max(0.0, high - value)]]


def _loss(experiment: Experiment, axes: Any, x: str = "hours", metric: str = "train_loss") -> None:
    """Draw a metric against hours since its first value, or against steps where the source reports them."""
    if x not in ("step", "hours"):
        raise ValueError("x is 'step' or 'hours'")
    frame = experiment.history(metric)
    if x == "step" and len(frame) and frame["step"].isna().all():
        raise ValueError(f"{metric} was reported without steps: use x='hours'")
    colours = _colours(experiment)
    names = _names(experiment)
    for trial, part in frame.groupby("id", sort=False):
        hours = (part["at"] - part["at"].min()).dt.total_seconds() / 3600
        places = part["step"].astype(float) if x == "step" else hours
        candidate = part["candidate"].iloc[0]
        label = names.get(trial, candidate)
        style = "--" if "(spot)" in label else "-"
        axes.plot(places, part["value"], style, label=label, lw=1.4, color=colours.get(candidate))
    axes.set(
        xlabel="hours since the first value" if x == "hours" else x, ylabel=metric, title=f"{experiment.name}: measured"
    )
    if len(frame):
        axes.legend(frameon=False)


def _speed(experiment: Experiment, axes: Any) -> None:
    """Draw the measured tokens per second of each trial, with its 95 % interval."""
    rows = [row for row in experiment.comparison() if row.get("tokens_per_second")]
    of_trial = _names(experiment)
    names = [f"{of_trial[row['trial_id']]}\n{row['instance_type']}" for row in rows]
    speeds = [row["tokens_per_second"] for row in rows]
    widths = [row.get("tokens_per_second_half_width") or 0.0 for row in rows]
    colours = _colours(experiment)
    fill = [colours[row["candidate"]] for row in rows]
    axes.barh(range(len(rows)), speeds, xerr=widths, capsize=3, color=fill)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set(xlabel="tokens per second", title=f"{experiment.name}: measured, 95 % intervals")


def _race(experiment: Experiment, axes: Any) -> None:
    """Draw the projected dollars of each choice as dollars were spent on trials, with 90 % intervals."""
    lines: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
    colours = _colours(experiment)
    for look in experiment.race()["looks"]:
        for arm in look["arms"]:
            low, high = arm.get("cost_usd_90") or (arm["projected_cost_usd"],) * 2
            point = (look["spent_usd"], arm["projected_cost_usd"], low, high)
            lines.setdefault((arm["candidate"], arm["purchase_option"]), []).append(point)
    for (name, option), points in lines.items():
        spent, cost, low, high = zip(*points, strict=True)
        label, style = (f"{name} (spot)", "--") if option == "spot" else (name, "-")
        axes.plot(spent, cost, style, marker="o", ms=3, label=label, color=colours[name])
        axes.fill_between(spent, low, high, alpha=0.15, color=colours[name], lw=0)
    axes.set(xlabel="dollars spent on trials", ylabel="projected dollars of the full run")
    axes.set_title(f"{experiment.name}: how the race went, 90 % intervals")
    if lines:
        axes.legend(frameon=False)
