"""Where in a prompt the sentence stands that says how to refuse, as a range for `whitelist`
(Pitfalls, Appendix D whitelists such a sentence inside the defense):

    studies/make.sh phrase TRACE.h5

prints the half-open range of tokens `a-b` of the first sentence of the span `defense` that quotes a
reply.
"""

import argparse
from pathlib import Path

from kvsim.trace import Trace


def sentence(tokens, begin, end):
    """(first, last + 1) of the first sentence of tokens[begin:end] that holds a quotation."""
    quotes = [i for i in range(begin, end) if '"' in tokens[i]]
    if len(quotes) < 2:
        raise SystemExit(f"tokens {begin} to {end} quote no reply")
    first = quotes[0]
    while first > begin and not tokens[first - 1].rstrip().endswith("."):
        first -= 1
    last = quotes[1]
    while last + 1 < end and not ends(tokens[last], tokens[last + 1]):
        last += 1
    return first, last + 1


def ends(token, following):
    """A sentence ends at a full stop, also within the quotation, before what begins another."""
    return token.rstrip('" ').endswith(".") and not following.strip()[:1].islower()


def main():
    parser = argparse.ArgumentParser(prog="phrase.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", metavar="TRACE.h5", type=Path)
    trace = Trace(parser.parse_args().trace)
    defense = next(one for one in trace.spans if one.name == "defense")
    print("{}-{}".format(*sentence(trace.text, defense.begin, defense.end)))


if __name__ == "__main__":
    main()
