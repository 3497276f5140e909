"""One module per figure. Each has

    TITLE                    one line for --help
    pages(results, options)  -> list of (file name without ending, function that draws it)

`pages` looks at what the results file has, raises load.Missing when the figure cannot be made from
it, and draws nothing, so that every target is known before any work.
"""
