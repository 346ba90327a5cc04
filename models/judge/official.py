"""How the released ImgEdit-Bench script reads a reply, faults and all, for comparison with published tables.

A line counts only if splitting it, stripped, at `: ` gives two parts and `str.isdigit` holds for the second: so `4.`,
`4/5`, `**X:** 4` and `X:4` are silently lost, `99` counts, and so does a line that is no score. Digits of other scripts
count; a superscript or circled digit passes `isdigit` and then ends the script with ValueError: such a reply has no
score. Lines end where `str.splitlines` says. Source: Benchmark/Basic/step1_get_avgscore.py of PKU-YuanGroup/ImgEdit.
"""


def official_scores(reply: str) -> list[int]:
    """The numbers the script finds, in order. Raises ValueError where it would end with one."""
    numbers = []
    for line in reply.splitlines():
        parts = line.strip().split(": ")
        if len(parts) == 2 and parts[1].isdigit():
            numbers.append(int(parts[1]))
    return numbers


def official_score(reply: str) -> float | None:
    """A picture's score: the mean of the numbers, rounded to two places. None where there is none, or an error."""
    try:
        numbers = official_scores(reply)
        return round(sum(numbers) / len(numbers), 2) if numbers else None
    except (ValueError, OverflowError):
        return None
