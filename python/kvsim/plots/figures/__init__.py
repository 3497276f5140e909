"""One module per figure. Each has

    TITLE                          one line for --help
    READS                          what it is drawn from: "results" (one results file, the default),
                                   "several" (a list of them), or the name of a command whose JSON it is
    NEEDS                          variables that the results file must have
    LACKING                        words for a file without them
    find(results, options)         what else it is drawn from; nothing: the file is not enough for it
    draw(results, options[, found])     the figure, which has the module's name;
    pages(results, options[, found])    or, of several, {file name without ending: function that draws it}

A figure that asks for more looks for it in `pages` and raises load.Missing where the file is not enough.
Nothing is drawn before every target of a call is known."""
