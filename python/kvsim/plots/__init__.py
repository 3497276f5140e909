"""The figures. Reads results files (docs/results.md), JSON of explain, no traces.

load.py    opens results files and turns every mistake into one line and an exit code
style.py   the one look of all figures, with kvsim.mplstyle: fonts, colours, line styles, the frame around the panels
axes.py    ticks and scales, and one axis for a measure in all figures of a call
figures/   one script per figure; a new file there is a new figure, no list is edited
draw.py    the entry point that `kvsim plot` runs"""
