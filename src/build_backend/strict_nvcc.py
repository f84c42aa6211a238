"""Run a compiler command and fail on what ptxas only mentions: `python strict_nvcc.py nvcc ...`.

`-Werror` does not reach ptxas's notes of class C75xx, such as `(C7511) Potential Performance Loss: wgmma.mma_async
instructions are serialized`, after which a kernel is right but several times slower. Used with -DINTEROP_WERROR=ON.
"""

import re
import subprocess
import sys

result = subprocess.run(sys.argv[1:], stderr=subprocess.PIPE, text=True, errors="replace")
sys.stderr.write(result.stderr)
if result.returncode == 0 and re.search(r"\(C75\d\d\)", result.stderr):
    sys.exit("strict_nvcc: a C75xx note of ptxas is an error here")
sys.exit(result.returncode)
