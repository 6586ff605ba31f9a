"""Runs a program and kills it with SIGKILL where its log says so: kill_at.py POINT program [argument ...]"""

import logging
import os
import runpy
import signal
import sys
from pathlib import Path

point, program, *arguments = sys.argv[1:]


class Killer(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == point:
            os.kill(os.getpid(), signal.SIGKILL)


for name in ("pg_once", Path(program).stem, "__main__"):
    logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger(name).addHandler(Killer())
sys.path.insert(0, str(Path(program).parent))
sys.argv = [program, *arguments]
runpy.run_path(program, run_name="__main__")
