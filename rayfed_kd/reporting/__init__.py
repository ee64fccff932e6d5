"""The report: one page about runs, comparisons and searches.

`reading` reads their folders, the modules named `..._sections` say what the page has, `sections` has what
they are made of, and `page` writes HTML and Markdown.
"""
