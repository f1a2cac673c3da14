import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2] / 'bench'))  # its scripts import each other
