"""The report: one page about runs, comparisons and searches.

`reading` reads their folders, the modules named `..._sections` say what the page has, `pictures` draws, and
`page` writes HTML and Markdown.
"""
