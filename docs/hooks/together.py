"""How many of a page's claims are decided, by themselves and with all others of the page (Holm's correction).

    python docs/hooks/together.py docs/measured/results.md

From the page's own tables: a claim's p value follows from its printed mean, interval and number of seeds.
"""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rayfed_kd.comparison.differences import Difference, JudgedClaim, after_holm, student_t
from rayfed_kd.comparison.studies import Claim

SEEDS = re.compile(r"over\s+(\d+)\s+seeds")
# | claim | number | +0.51 [-1.21, +2.23] | verdict (above -1) ... |
ROW = re.compile(r"\| (.*) \| .* \| ([+-]\S+) \[(\S+), (\S+)\] \| (shown|not shown|contradicted)(.*) \|")
MARGIN = re.compile(r"\(above -(\S+)\)")


def judged(page: str) -> Iterator[JudgedClaim]:
    """The claims of a page that have a verdict, in its order."""
    for block in page.split("<!-- measured: ")[1:]:
        (seeds, *_) = SEEDS.findall(block) or ["0"]
        for says, *numbers, verdict, rest in ROW.findall(block):
            mean, low, high = (float(number.replace(",", "")) for number in numbers)
            margin = float((MARGIN.findall(rest) or ["0"])[0])
            width = (high - low) / 2
            deviation = width / student_t(int(seeds) - 1) * math.sqrt(int(seeds))
            difference = Difference(dict.fromkeys(range(int(seeds)), mean), mean, deviation, width)
            # "bytes": the margin is in the unit of the printed numbers.
            claim = Claim(says=says, higher="A", lower="B", metric="bytes", margin=margin)
            one = JudgedClaim(claim, ("A", ""), ("B", ""), "bytes", difference)
            if one.verdict != verdict:
                raise ValueError(f"{says}: the page says {verdict}, its interval {one.verdict}")
            yield one


def sentence(page: str) -> str:
    """What the page says of its claims together."""
    claims = list(judged(page))
    decided = [one for one in claims if one.verdict != "not shown"]
    together = [one for one, stands in zip(claims, after_holm(claims), strict=True) if stands]
    return (
        f"Of {len(claims)} claims {len(decided)} are decided, where chance alone would decide "
        f"{0.05 * len(claims):.1f}; {len(together)} of them also after Holm's correction over this page."
    )


if __name__ == "__main__":
    page = Path(sys.argv[1]).read_text()
    claims = list(judged(page))
    decided = zip(claims, after_holm(claims), strict=True)
    stands = [f"{one.claim.says}: {one.verdict}" for one, stays in decided if stays]
    sys.stdout.write("\n".join([sentence(page), *stands, ""]))
