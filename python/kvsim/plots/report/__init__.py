"""The page of `kvsim report`: one HTML file with everything in it (docs/report.md).

write.py     the entry point that `kvsim report` runs
verdict.py   the table of policies by budget: measures, their direction, intervals over traces
detail.py    a results file with what the trace adds to it: steps, layers, heads, texts and kept sets, as
             numbers for the page
pack.py      numbers and texts as blocks of an HTML file
page/        what runs in the browser; vendor/: the chart library"""
