"""Makes another environment see what a wheel requires, and no more: links to what this one has installed.

    PYTHON tests/python/link_required.py WHEEL SITE_PACKAGES

As pip would install it, in a fraction of the time. A requirement that is not here, or in a version that the
wheel does not want, is an error.
"""

import importlib.metadata
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement


def required_by(texts):
    found = (Requirement(text) for text in texts or ())
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def of_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return required_by(Parser().parsestr(archive.read(name).decode("utf-8")).get_all("Requires-Dist"))


def link(distribution, target):
    """Its folders and files beside each other; programs, which lie elsewhere, are left out."""
    for name in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
        place = target / name
        if not place.exists():
            place.symlink_to(distribution.locate_file(name).resolve())


def main():
    wheel, target = map(Path, sys.argv[1:])
    waiting, seen = of_wheel(wheel), set()
    if not waiting:
        sys.exit(f"{wheel}: requires nothing")
    while waiting:
        one = waiting.pop()
        distribution = importlib.metadata.distribution(one.name)
        if not one.specifier.contains(distribution.version, prereleases=True):
            sys.exit(f"{one.name} {distribution.version} is installed, expected {one}")
        if distribution.metadata["Name"] not in seen:
            seen.add(distribution.metadata["Name"])
            link(distribution, target)
            waiting += required_by(distribution.requires)
    print("required:", *sorted(seen))


if __name__ == "__main__":
    main()
