"""A comparison's files and its table on the screen: every label is shown as it is, and leads nowhere."""

import html
import io
import re
from dataclasses import replace

import pytest
from known_comparison import KDIA, compared, relabelled
from markdown_it import MarkdownIt
from rich.console import Console

from rayfed_kd.comparison.compare import write_comparison
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.study_changes import change_study
from rayfed_kd.comparison.writers.all_tables import print_comparison, render_markdown
from rayfed_kd.comparison.writers.latex import escape_latex, render_latex
from rayfed_kd.reporting.study_sections import comparison_section, study_title


def test_bar_in_a_label_stays_in_its_cell_of_the_markdown_table_and_of_the_report():
    """One cell more would shift the numbers below the wrong heading."""
    text = render_markdown(relabelled("B | b|"))
    assert r"| B \| b\| (global) | 60.00" in text
    table, costs = comparison_section("x", text).tables
    assert [row[0] for row in table.rows] == ["A (global)", "B | b| (global)"]
    assert {len(row) for row in (table.header, *table.rows)} == {5}
    assert [row[0] for row in costs.rows] == ["A", "B | b|"]


def test_labels_and_titles_are_texts_in_the_markdown_and_the_same_in_the_report():
    """`<` and `&` as entities, which every reader of Markdown shows; Python-Markdown knows no `\\<`."""
    label, title = "<img src=x onerror=alert(1)>", "<script>alert(1)</script> &lt;b&gt; [x](javascript:y)"
    comparison = relabelled(label)
    comparison = replace(comparison, study=comparison.study.model_copy(update={"title": title}))
    text = render_markdown(comparison)
    assert not re.search(r"<[a-z/]", text)
    shown = MarkdownIt().enable("table").render(text)
    assert "<img" not in shown
    assert "<script" not in shown
    assert "href" not in shown
    assert html.unescape(shown).count(label) == text.count("&lt;img src=x onerror=alert(1)>") >= 2
    assert study_title(text) == title
    section = comparison_section("x", text)
    assert [row[0] for row in section.tables[0].rows] == ["A (global)", f"{label} (global)"]


def test_latex_is_for_booktabs_and_escaped():
    lines = render_latex(compared(title="x")).splitlines()
    assert lines[0] == "% x; last round, mean ± sample deviation over 2 seeds."
    assert lines[1].startswith("% Difference: ")
    assert lines[3] == r"\begin{tabular}{lrrrr}"
    assert lines[4] == r"\toprule"
    assert lines[7] == r"A (global) & 60.00 $\pm$ 28.28 & 70.00 $\pm$ 14.14 & 60.00 $\pm$ 14.14 &  \\"
    assert r"official test \%" in lines[5]
    end = lines.index(r"\end{tabular}")
    assert lines[end - 2] == r"\bottomrule"
    costs = lines[end + 1 :]
    assert costs[:4] == [
        "",
        r"\bigskip",
        "% Costs of a whole run, mean over seeds",
        r"\begin{tabular}{lrrrr}",
    ]
    assert costs[5] == r"run & MiB up & MiB down & MiB & simulated s \\"
    assert costs[-1] == r"\end{tabular}"


def test_latex_prints_what_was_shortened_and_not_only_as_a_comment():
    published = [{**KDIA, "differs": "20 % of N"}]
    lines = render_latex(compared(title="x; 5 rounds & 1 seed", published=published)).splitlines()
    note, _, published = (lines[place - 1] for place, line in enumerate(lines) if line == r"\end{tabular}")
    assert note.startswith(
        r"\multicolumn{5}{p{\linewidth}}{\footnotesize x; 5 rounds \& 1 seed; last round, "
    )
    assert r"here differs: 20 \% of N" in published
    assert note.endswith(r"} \\")


def test_published_rows_stand_beneath_with_what_differs():
    text = render_markdown(compared(published=[{**KDIA, "differs": "N 50"}]))
    assert "Published, kdia table 2 (dataset CIFAR-10, beta 0.1); here differs: N 50:" in text
    assert "| KDIA (T) | accuracy 57.29 ± 0.97 |" in text


def test_terminal_shows_an_overrides_brackets_in_the_title():
    console = Console(file=io.StringIO(), width=200)
    known = compared(title="T")
    changed = Comparison(change_study(known.study, ["x=[a, b]"]), known.curves, known.totals)
    print_comparison(changed, console)
    assert "x=[a, b]" in console.file.getvalue()


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("label", ["../../../x", "{tmp}/elsewhere", "..", "a/b"])
def test_label_that_looks_like_a_path_leads_to_no_folder_outside_of_the_studys(label, tmp_path):
    label = label.format(tmp=tmp_path)
    write_comparison(relabelled(label), tmp_path / "deep" / "er" / "study")
    assert all(name.startswith("deep/er/study/") for name in files_below(tmp_path))


@pytest.mark.parametrize(
    ("label", "printed"),
    [
        (r"a\b", r"a\textbackslash{}b"),
        ("$x$", r"\$x\$"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("50 % of A_b & #1", r"50 \% of A\_b \& \#1"),
        ("x^2 ~ y", r"x\textasciicircum{}2 \textasciitilde{} y"),
        ("two\nlines", "two lines"),
        ("A -> B ± C", r"A $\to$ B $\pm$ C"),
        ("a|b<c>d --- e", r"a\textbar{}b\textless{}c\textgreater{}d -{}-{}- e"),
    ],
)
def test_latex_prints_every_character_of_a_label_as_it_is(label, printed):
    assert escape_latex(label) == printed
    assert f"{printed} (global) & " in render_latex(relabelled(label))


def test_line_break_in_a_title_does_not_end_latexs_comment():
    lines = render_latex(compared(title="first\nsecond")).splitlines()
    assert lines[0].startswith("% first second; last round")
    assert all(line.startswith("%") for line in lines[: lines.index(r"\begin{tabular}{lrrrr}")])
