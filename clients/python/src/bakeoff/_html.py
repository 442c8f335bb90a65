"""How answers show themselves in a notebook. Everything from outside is escaped."""

from __future__ import annotations

from html import escape
from typing import Any

_CELL = "padding:.25em .8em .25em 0;text-align:{};vertical-align:top"


def of_recommendation(raw: dict[str, Any]) -> str:
    """Return the headline, the first three reasons, and the choices as a table."""
    parts = [f"<p style='font-size:1.15em;margin:.3em 0'><b>{escape(str(raw['headline']))}</b></p>"]
    if raw["provisional"]:
        parts.append("<p><i>Provisional: trials are still running, or one waits for a person.</i></p>")
    reasons = "".join(f"<li>{escape(str(reason))}</li>" for reason in raw["reasons"][:3])
    if reasons:
        parts.append(f"<ul style='margin:.3em 0'>{reasons}</ul>")
    if raw["ranked"]:
        heads = ("", "candidate", "instances", "tokens/s", "$ per M tokens", "full run", "hours", "P(best)")
        rows = [_choice(choice) for choice in raw["ranked"]]
        parts.append(_table(heads, rows))
    if raw["not_ranked"]:
        left_out: list[tuple[str, ...]] = [
            (str(one["candidate"]), str(one["instance_type"]), str(one["reason"])) for one in raw["not_ranked"]
        ]
        parts.append("<p style='margin:.6em 0 0'>Not ranked</p>" + _table(("", "", ""), left_out, words=3))
    return "<div>" + "".join(parts) + "</div>"


def _choice(choice: dict[str, Any]) -> tuple[str, ...]:
    odds = choice.get("odds") or {}
    cost = f"${choice['projected_cost_usd']:,.2f}"
    hours = f"{choice['projected_hours']:,.1f}"
    if odds:
        cost += f" ({odds['cost_usd_low']:,.0f} to {odds['cost_usd_high']:,.0f})"
        hours += f" ({odds['hours_low']:,.1f} to {odds['hours_high']:,.1f})"
    count = choice["instance_count"]
    instances = choice["instance_type"] if count == 1 else f"{count} × {choice['instance_type']}"
    spot = " spot" if choice["purchase_option"] == "spot" else ""
    return (
        str(choice["rank"]),
        str(choice["candidate"]),
        f"{instances}{spot}",
        f"{choice['tokens_per_second']:,.0f} ± {choice['tokens_per_second_half_width']:,.0f}",
        f"{choice['usd_per_million_tokens']:,.4f}",
        cost,
        hours,
        f"{odds['p_best']:.2f}" if odds else "",
    )


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]], words: int = 3) -> str:
    """Make a table whose first `words` columns are words, and the others figures."""

    def cells(row: tuple[str, ...], tag: str) -> str:
        aligned = ("left" if at < words else "right" for at in range(len(row)))
        return "".join(
            f"<{tag} style='{_CELL.format(side)}'>{escape(cell)}</{tag}>"
            for cell, side in zip(row, aligned, strict=True)
        )

    head = f"<thead><tr>{cells(heads, 'th')}</tr></thead>" if any(heads) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"
