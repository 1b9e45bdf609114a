"""Tables as text for other programs: Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Literal

WrittenForm = Literal["markdown", "latex", "csv"]
TableForm = Literal["text", "markdown", "latex", "csv"]

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def written_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], form: WrittenForm, left: int = 1
) -> str:
    """A table without a title, and without an end of line after its last one.

    Args:
        header: A heading for each column.
        rows: A cell for each column.
        form: LaTeX is a tabular with the rules of booktabs.
        left: So many columns from the left are words; the others are aligned as numbers.
    """
    numbers = len(header) - left
    if form == "csv":
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
        return file.getvalue().rstrip("\n")
    if form == "markdown":
        rule = [*["---"] * left, *["---:"] * numbers]
        escaped = ([cell.replace("|", r"\|") for cell in row] for row in (header, rule, *rows))
        return "\n".join(f"| {' | '.join(row)} |" for row in escaped)
    body = [" & ".join(map(_latex, row)) + r" \\" for row in (header, *rows)]
    begin = rf"\begin{{tabular}}{{{'l' * left}{'r' * numbers}}}"
    return "\n".join([begin, r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}"])


def _latex(text: str) -> str:
    escaped = re.sub(
        r"[&%$#_{}]", lambda match: f"\\{match[0]}", re.sub(r"[\\~^]", lambda match: _LATEX[match[0]], text)
    )
    return escaped.replace(" ± ", r" $\pm$ ").replace("–", "--")
