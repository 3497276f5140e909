"""One module per figure. Each has

    TITLE                    one line for --help
    pages(results, options)  -> list of (file name without ending, function that draws it)

    READS                    what it is drawn from: "results" (one results file, the default),
                             "several" (a list of them), or the name of a command whose JSON it is

`pages` looks at what the results file has, raises load.Missing when the figure cannot be made from
it, and draws nothing, so that every target is known before any work.
"""
