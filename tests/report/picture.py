"""Takes the README's picture of a page: picture.py PAGE.html PICTURE.png [light|dark]"""

import sys
from pathlib import Path

from browser import Browser

VIEW = "policy=snapkv&vs=h2o&budget=0.3&step=445&mode=step"
WIDTH, HEIGHT = 2100, 1420   # wide enough for two columns


def main(page, picture, scheme="light"):
    browser = Browser(WIDTH, HEIGHT, scheme)
    try:
        browser.open(Path(page).resolve(), VIEW)
        browser.picture(Path(picture))
    finally:
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
