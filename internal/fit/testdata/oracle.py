"""Plain least squares of step = a + b*R + c*T over bins, independently of kvroute.

Reads rows "step,requests,tokens" from stdin and prints a, b and c in full precision."""

import sys

import numpy as np

rows = np.loadtxt(sys.stdin, delimiter=",", ndmin=2)
design = np.column_stack([np.ones(len(rows)), rows[:, 1], rows[:, 2] / 1e6])
(a, b, c), *_ = np.linalg.lstsq(design, rows[:, 0], rcond=None)
print(repr(float(a)), repr(float(b)), repr(float(c / 1e6)))
