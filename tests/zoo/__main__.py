"""Builds the zoo, or the models named: python -m zoo [NAME...]"""

import sys

from zoo.workshop import BY_NAME, build, folder

wanted = sys.argv[1:] or list(BY_NAME)
build(wanted)
missing = [name for name in wanted if not folder(name).is_dir()]
sys.exit(f"could not be made: {', '.join(missing)}" if missing else 0)
