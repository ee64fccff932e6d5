"""A paper's files: numbers of a known comparison in LaTeX, figures of a column, a style of one's own."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from known_comparison import KDIA, compared, relabelled
from paths import ROOT

from rayfed_kd.comparison.checking import check_study
from rayfed_kd.comparison.compare import write_comparison
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.studies import Study
from rayfed_kd.comparison.study_changes import change_study, without_rows
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.charts.figure import COLOURS, DASHES, MARKS
from rayfed_kd.results.charts.lines import Line, lines_figure

pytestmark = pytest.mark.pictures


def written(folder, comparison=None, **paper):
    """The files of a paper."""
    comparison = comparison or compared()
    study = Study.model_validate({**comparison.study.model_dump(), "paper": paper})
    files = write_comparison(replace(comparison, study=study), folder)
    return [path for path in files if path.parent.name == "paper"]


def body(path):
    lines = path.read_text().splitlines()
    return lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]


def test_table_has_best_means_in_bold_and_differences_with_their_interval(tmp_path):
    """Of the last two evaluations A has .5 and .7, B .55 and .25: B less A is +.05 and -.45.

    Mean -.2, deviation .35355, Student's t with one degree of freedom 12.706: half width 3.1766.
    """
    files = {path.name: path for path in written(tmp_path)}
    assert set(files) == {
        "table.tex",
        *(f"{name}-server_accuracy.{kind}" for name in ("curves", "intervals") for kind in ("pdf", "svg")),
    }
    assert body(files["table.tex"]) == [
        r"A (global) & $\mathbf{60.00} \pm 14.14$ &  \\",
        r"B (global) & $40.00 \pm 21.21$ & $-20.00 \ [-337.66, +297.66]$ \\",
    ]
    text = files["table.tex"].read_text()
    assert r"\begin{tabular}{lrr}" in text
    assert "Comparison; mean of last 2 evaluations, mean $\\pm$ sample deviation over 2 seeds." in text
    assert "over 2 seeds. Bold: the best mean of a column. Difference: official test" in text
    assert r"95 \% confidence interval by Student's t" in text


def test_the_smaller_is_bold_where_it_is_the_better_one(tmp_path):
    known = compared()
    curves = {(*key[:3], "fm"): replace(curve, better=min) for key, curve in known.curves.items()}
    # The last two of them are .6, .5 and .6, .7 of A, and .2, .1 twice of B.
    turned = {key: replace(curve, values=curve.values[::-1]) for key, curve in curves.items()}
    comparison = Comparison(known.study, {**known.curves, **turned}, known.totals)
    (table,) = (path for path in written(tmp_path, comparison, columns=["fm"]) if path.suffix == ".tex")
    assert body(table) == [
        r"A (global) & $0.6000 \pm 0.0707$ \\",
        r"B (global) & $\mathbf{0.1500} \pm 0.0000$ \\",
    ]


def test_intervals_say_what_a_difference_is_to(tmp_path):
    """C less B, its model's own baseline, beside B less A."""
    runs = [{"label": label} for label in "ABC"]
    known = compared(runs=runs, baselines={"personal": "B"})
    curves = {("C", "personal", *key[2:]): one for key, one in known.curves.items() if key[0] == "A"}
    comparison = Comparison(known.study, {**known.curves, **curves}, known.totals)
    files = {path.name: path for path in written(tmp_path, comparison)}
    drawn = files["intervals-server_accuracy.svg"].read_text()
    assert {"B (global)", "C (personal) to B", "official test, points, less A"} <= set(
        re.findall(r">([^<>]+)</text>", drawn)
    )
    assert body(files["table.tex"])[2].endswith(r"$ to B \\")


def test_rows_stand_as_they_are_named_with_what_the_paper_printed(tmp_path):
    known = compared(published=[KDIA], runs=[{"label": "A"}, {"label": "B", "published": "KDIA (T)"}])
    (table, *_) = written(tmp_path, known, rows=["B", "A"], columns=["server_accuracy", "published"])
    assert [line.split(" & ")[0] for line in body(table)] == ["B (global)", "A (global)"]
    assert r"57.29 $\pm$ 0.97" in body(table)[0]


def test_a_row_alone_has_no_difference_and_the_folder_none_of_more_rows(tmp_path):
    assert [path.name for path in written(tmp_path) if "intervals" in path.name]
    (own := tmp_path / "paper" / "curves-edited.svg").touch()
    files = written(tmp_path, rows=["A"])
    assert {*files, own} == {*(tmp_path / "paper").iterdir()}
    assert "ifference" not in files[0].read_text()


def test_a_column_that_no_row_has_is_said_beneath_the_table(tmp_path):
    (table, *_) = written(tmp_path, columns=["wlp", "difference", "published"])
    assert "WLP" not in table.read_text()
    assert "A paper's table has no column published and wlp" in (tmp_path / "comparison.md").read_text()


def test_labels_are_text_in_the_table(tmp_path):
    (table, *_) = written(tmp_path, relabelled("B_1 & 50 %"))
    assert body(table)[1].startswith(r"B\_1 \& 50 \% (global) & ")


def test_the_same_numbers_give_the_same_bytes_at_the_width_asked_for(tmp_path):
    first, again = (written(tmp_path / name, width=2.5) for name in ("first", "again"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    (svg,) = (path for path in first if path.name == "curves-server_accuracy.svg")
    width = re.search(r'width="([\d.]+)pt"', svg.read_text()).group(1)
    assert float(width) == pytest.approx(2.5 * 72)


def test_figures_follow_a_style_of_ones_own_and_later_ones_do_not(tmp_path):
    style = tmp_path / "mine.mplstyle"
    style.write_text("axes.prop_cycle: cycler('color', ['123456', '654321'])\n")
    files = written(tmp_path / "a", style=str(style))
    drawn = {path.name: path.read_text() for path in files if path.suffix == ".svg"}
    assert "#123456" in drawn["curves-server_accuracy.svg"]
    assert "#654321" in drawn["curves-server_accuracy.svg"]
    plain = [path.read_text() for path in written(tmp_path / "b") if path.suffix == ".svg"]
    assert all("#123456" not in text for text in plain)
    assert COLOURS[0].lower() in plain[0]


def test_no_two_lines_look_the_same():
    count = len(COLOURS) * len(DASHES) * len(MARKS)
    lines = [Line(look, [1, 2], [look, look], label=str(look)) for look in range(count)]
    axes = lines_figure(lines, "round", "y", 1).axes[0]
    looks = {(str(one.get_color()), str(one._dash_pattern), one.get_marker()) for one in axes.lines}
    assert len(looks) == len(axes.lines) == count == 140


@pytest.mark.parametrize(
    ("paper", "message"),
    [
        ({"rows": ["C"]}, "paper.rows: 'C' is unknown; expected one of A, B b"),
        ({"style": "none.mplstyle"}, "paper.style: there is no file none.mplstyle"),
        ({"style": str(ROOT / "docs/measured/raw.parquet")}, "raw.parquet is no style of matplotlib's: '"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_the_first_run(paper, message, study):
    bad = type(study).model_validate({**study.model_dump(), "paper": paper})
    with pytest.raises(RecipeError, match=re.escape(message)):
        check_study(bad)


def test_rows_that_are_left_out_are_left_out_of_the_paper(study):
    asked = type(study).model_validate({**study.model_dump(), "paper": {"rows": ["B b", "A"]}})
    assert without_rows(asked, ["A"]).paper.rows == ["B b"]
    assert without_rows(asked, ["A", "B b"]).paper is None
    alone = type(study).model_validate({**study.model_dump(), "paper": {"rows": ["A"]}})
    assert "no files for a paper" in change_study(alone, only=["B b"]).title


def test_a_command_line_may_ask_for_a_paper(study, tmp_path):
    content = study.model_dump(exclude_none=True)
    assert select_studies(content)[0].paper is None
    assert select_studies(content, paper=True)[0].paper.width == 3.3


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_reads_the_table(tmp_path):
    (table, *_) = written(tmp_path, relabelled("B_1 & 50 %"))
    begin = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "a.tex").write_text(begin + table.read_text() + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    subprocess.run(command, cwd=tmp_path, check=True)
